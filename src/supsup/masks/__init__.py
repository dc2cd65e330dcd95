"""Frozen weights, scores that become masks, and the bank of bits."""
