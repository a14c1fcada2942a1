"""Suites of the A/B benchmark; see README.md."""
