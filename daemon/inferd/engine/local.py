"""The executor that runs the model in this process, one step at a time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from inferd.engine.executor import Executor

if TYPE_CHECKING:
    from inferd.engine.batch import Batch, StepOutput
    from inferd.engine.runner import Runner
    from inferd.link import DeviceUse


class LocalExecutor(Executor):
    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._done: deque[StepOutput] = deque()

    def submit(self, batch: Batch) -> None:
        output = self.runner.step(batch)
        if output is None:
            raise RuntimeError("a local executor needs a rank that samples")
        self._done.append(output)

    def collect(self) -> StepOutput:
        return self._done.popleft()

    def use(self) -> DeviceUse:
        return self.runner.use()
