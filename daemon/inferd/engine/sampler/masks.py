"""Apply the masks of grammars to logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OUT = float("-inf")


def apply_masks(logits: torch.Tensor, rows: NDArray[np.int32], masks: NDArray[np.int32]) -> None:
    """Remove from rows [K] of logits [R, vocab], in place, the tokens that masks [K, vocab / 32] forbid."""
    vocab = logits.shape[-1]
    allowed = unpack_on_host(masks, vocab) if logits.device.type == "cpu" else unpack_on(logits.device, masks, vocab)
    index = torch.from_numpy(rows).to(logits.device, torch.int64)
    logits.index_copy_(0, index, logits.index_select(0, index).masked_fill_(~allowed, _OUT))


def unpack_on_host(masks: NDArray[np.int32], vocab: int) -> torch.Tensor:
    """Return bool [K, vocab]: bit i of word w is token 32 w + i."""
    bits = np.unpackbits(masks.view(np.uint8), axis=1, count=vocab, bitorder="little")
    return torch.from_numpy(bits.view(np.bool_))


def unpack_on(device: torch.device, masks: NDArray[np.int32], vocab: int) -> torch.Tensor:
    """The same on a device, which gets an eighth of the bytes that way."""
    words = torch.from_numpy(masks).to(device)
    bits = (words.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=device)).bitwise_and_(1)
    return bits.flatten(1)[:, :vocab].bool()
