"""Published files from elsewhere: fetched within bounds, and kept for the next time."""
