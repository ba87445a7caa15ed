"""A third party's attention backend with faults on demand: the built-in one, and traps for prompts that begin so."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Any, NamedTuple

from inferd.plugin.contracts import Capabilities, PluginSpec
from inferd.plugin.hookspecs import hookimpl

NAN, SEGV, RAISE, SLOW, STICKY = 280, 281, 282, 283, 284
SLOW_S = 0.05
"""How much longer a step takes that computes SLOW, wherever it stands."""


@hookimpl
def inferd_attention_backends() -> list[PluginSpec]:
    return [_spec("trap", "TrapAttention"), _spec("dying", "DyingAttention"), _spec("raising", "RaisingAttention")]


def _spec(name: str, target: str) -> PluginSpec:
    return PluginSpec(
        name=name,
        kind="attention",
        target=f"inferd_trap:{target}",
        capabilities=Capabilities(kv_formats=frozenset({"fp32"})),
        exactness="token",
        baseline="torch",
        priority=-5,
    )


def __getattr__(name: str) -> Any:
    """Make the classes when the engine asks for them: describing plugins must not import torch."""
    if name not in ("TrapAttention", "DyingAttention", "RaisingAttention"):
        raise AttributeError(name)
    import torch

    from inferd_plugins.attention.torch import TorchAttention

    class Plan(NamedTuple):
        inner: Any
        poisoned: Any

    class TrapAttention(TorchAttention):
        lost = False
        """As after an error of CUDA: whatever is asked of the device then gives the same error again."""

        def plan(self, inputs: Any, workspace: Any) -> Any:
            if SLOW in inputs.token_ids.tolist():
                time.sleep(SLOW_S)
            firsts = inputs.token_ids[inputs.positions == 0].tolist()
            if SEGV in firsts:
                ctypes.string_at(0)
            self.lost = self.lost or STICKY in firsts
            if self.lost:
                raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nDevice-side...")
            if RAISE in firsts:
                raise RuntimeError("the trap was sprung")
            return Plan(super().plan(inputs, workspace), (inputs.token_ids == NAN) & (inputs.positions == 0))

        def attend(self, layer: Any, q: Any, kv: Any, plan: Any) -> Any:
            out = super().attend(layer, q, kv, plan.inner)
            if layer.index == 0:
                out[plan.poisoned[: len(out)]] = float("nan")
            return out

    class DyingAttention(TorchAttention):
        def kv_layout(self, group: Any, format: Any, block_size: int) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    class RaisingAttention(TorchAttention):
        def kv_layout(self, group: Any, format: Any, block_size: int) -> Any:
            raise KeyError("a layout it forgot")

    return {"TrapAttention": TrapAttention, "DyingAttention": DyingAttention}.get(name, RaisingAttention)
