"""Executors that train many masks at once; each is tested against `training/plain.py`."""
