"""Attention backends: how keys and values are stored and attended over."""
