"""Where the model runs, seen from the engine loop: submit a batch, collect its outputs in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from inferd.link import DeviceUse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inferd.engine.batch import Batch, StepOutput


class Executor(ABC):
    """Local, or spread over ranks. Steps are collected in the order they were submitted."""

    depth: int = 1
    """Steps that may be in flight at once."""
    most_steps: int = 1
    """Steps of plain decoding that one batch may be run for."""

    @abstractmethod
    def submit(self, batch: Batch) -> None:
        """Start one step. Raises RuntimeError when the device or a rank is lost."""

    @abstractmethod
    def collect(self) -> StepOutput:
        """Wait for the oldest step in flight."""

    def watch(self, file: int) -> None:
        """End batches of several steps early from now on where this file can be read from."""

    def use(self) -> DeviceUse:
        """Tell what this process holds on its device beside weights and KV, where that is known."""
        return DeviceUse()

    def prepare(self) -> Iterator[None]:
        """Do ahead what later steps would wait for, in short slices, for times without a step in flight."""
        return iter(())

    def close(self) -> None:
        """Release the device and end the ranks."""


def loses_device(error: BaseException) -> bool:
    """Say whether a device is lost with an error: one of CUDA's sticks, and every later call fails with it.

    Running out of memory is none of them. Read off name and text, so that nothing of torch is needed.
    """
    text = str(error)
    return type(error).__name__ == "AcceleratorError" or text.startswith(("CUDA error:", "Triton Error [CUDA]:"))
