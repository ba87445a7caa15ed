"""Serve the metrics to Prometheus on the loopback, from a thread that renders what the front last handed over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferd.metrics.exposition import Collected

if TYPE_CHECKING:
    from prometheus_client import Metric

    from inferd.metrics.exposition import Snapshot

LOOPBACK = "127.0.0.1"


class Exporter:
    """An HTTP server at 127.0.0.1. `publish` replaces what it tells.

    Raises OSError when the port is taken, ImportError without the package prometheus_client.
    """

    def __init__(self, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._newest: Snapshot | None = None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._server, self._thread = start_http_server(port, LOOPBACK, registry)

    @property
    def port(self) -> int:
        return self._server.server_port

    def publish(self, snapshot: Snapshot) -> None:
        self._newest = snapshot

    def collect(self) -> Iterator[Metric]:
        """Called by the server for each reader."""
        newest = self._newest
        if newest is not None:
            yield from Collected(newest).collect()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
