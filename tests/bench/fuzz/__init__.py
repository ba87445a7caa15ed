"""Hostile inputs in great number: `python -m tests.bench.fuzz`. See __main__ for what it shows."""
