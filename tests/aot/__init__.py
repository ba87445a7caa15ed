"""Kernels compiled for GPUs that are not there: cubins, registers, spills, shared memory, instructions."""
