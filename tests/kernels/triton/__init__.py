"""Triton kernels against their references, in Triton's interpreter."""
