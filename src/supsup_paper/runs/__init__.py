"""Training and grading of the paper's experiments."""
