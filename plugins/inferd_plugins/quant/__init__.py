"""Quantizers: how the weights of a checkpoint are decoded, or packed at load."""
