"""A long mixed load with faults: `python -m tests.bench.soak`. See __main__ for what it shows."""
