"""Parallel strategies: how a model is spread over ranks."""
