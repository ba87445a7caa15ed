"""Metrics for those outside: as text when asked, and to the exporter where one is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferd.front.errors import EX_CONFIG, Refusal, StartError
from inferd.metrics.exporter import LOOPBACK, Exporter
from inferd.metrics.exposition import Snapshot, render
from inferd_client.protocol import Code

if TYPE_CHECKING:
    from inferd.front.status import StatusBuilder
    from inferd.loop import Loop
    from inferd.metrics import Metrics

PERIOD_S = 1.0
"""Age that the exporter's figures reach."""
MISSING = "the package prometheus_client is not installed: pip install 'inferd[daemon]'"


class Telemetry:
    """Raises StartError when the exporter cannot have its port."""

    def __init__(self, port: int, status: StatusBuilder, metrics: Metrics, loop: Loop) -> None:
        self._status = status
        self._metrics = metrics
        self._loop = loop
        self._exporter = self._open(port) if port else None
        if self._exporter is not None:
            loop.after(0, self._publish)

    def text(self) -> str:
        """Return all metrics as Prometheus text. Raises Refusal."""
        try:
            return render(self._snapshot())
        except ImportError:
            raise Refusal(Code.INVALID_PARAM, MISSING) from None

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None

    def _open(self, port: int) -> Exporter:
        try:
            return Exporter(port)
        except ImportError:
            raise StartError(f"metrics.port = {port}: {MISSING}", EX_CONFIG) from None
        except OSError as error:
            raise StartError(f"metrics.port = {port}: {LOOPBACK}:{port}: {error.strerror}", EX_CONFIG) from None

    def _publish(self) -> None:
        if self._exporter is not None:
            self._exporter.publish(self._snapshot())
            self._loop.after(PERIOD_S, self._publish)

    def _snapshot(self) -> Snapshot:
        return Snapshot.of(self._status.build(), self._metrics)
