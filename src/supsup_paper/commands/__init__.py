"""The commands that reproduce the paper and measure: reproduce, report, bench, demo."""
