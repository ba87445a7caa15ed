"""Triton kernels for GPUs. Each file holds the formula, a torch reference, the kernel and its launcher."""
