"""Threads, signals and forks: what keeps a change whole and an answer about one state."""
