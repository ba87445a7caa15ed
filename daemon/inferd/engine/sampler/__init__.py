"""Choose tokens from logits: filters, penalties, counter-based noise, log-probabilities."""

from inferd.engine.sampler.sampler import Sampler

__all__ = ["Sampler"]
