"""Benchmarks of this machine: what a model's phases take, offline in one process."""
