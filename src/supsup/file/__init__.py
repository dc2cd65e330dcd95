"""The model file: bits and bytes, one SQLite file for each model, its repair, and export to other formats."""
