"""What only a GPU can show: one script, `run.sh`, for a machine that is at hand for a quarter of an hour."""
