"""The engine worker: who runs in a step, the step on its device, the choice of tokens, the sizes of it all."""
