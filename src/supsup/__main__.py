"""`python -m supsup` is `supsup`."""

from supsup.cli import main

main()
