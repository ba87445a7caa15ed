"""The executor that runs the model in this process."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from inferd.engine.executor import Executor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inferd.engine.batch import Batch, StepOutput
    from inferd.engine.runner import Pending, Runner
    from inferd.link import DeviceUse


class LocalExecutor(Executor):
    def __init__(self, runner: Runner, *, depth: int = 1) -> None:
        self.runner = runner
        self.depth = depth
        self.most_steps = runner.most_steps
        self._pending: deque[Pending] = deque()

    def submit(self, batch: Batch) -> None:
        pending = self.runner.start(batch)
        if pending is None:
            raise RuntimeError("a local executor needs a rank that samples")
        self._pending.append(pending)

    def collect(self) -> StepOutput:
        return self._pending.popleft()()

    def watch(self, file: int) -> None:
        self.runner.watch(file)

    def prepare(self) -> Iterator[None]:
        return self.runner.prepare()

    def use(self) -> DeviceUse:
        return self.runner.use()
