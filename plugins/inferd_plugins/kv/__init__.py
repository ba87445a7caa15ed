"""KV managers: `paged` with prefix cache, and the baselines `contiguous` and `recompute`."""
