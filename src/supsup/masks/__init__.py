"""Frozen weights, scores that become masks, the bank of masks, and networks that switch masks."""
