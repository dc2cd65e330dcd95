"""Tests of the paper's experiments; a package, so that its conftest is not taken for that of all tests."""
