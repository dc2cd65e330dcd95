"""HopSupSup: masks on hidden units, stored in a Hopfield memory of constant size and recovered from it."""
