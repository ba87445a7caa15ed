"""Parts of a run on a GPU machine; each is a module with `run(bench) -> dict` and stands alone."""
