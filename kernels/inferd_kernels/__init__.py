"""Kernels: linear layers by weight form and device, and the plain reference functions."""
