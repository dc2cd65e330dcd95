"""The reproduction of the paper: rivals, experiments, runs and report; and the executor for its residual networks."""
