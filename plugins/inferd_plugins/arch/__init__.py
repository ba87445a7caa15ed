"""Architectures: what a checkpoint's config says of its model, and which tensors it is made of."""
