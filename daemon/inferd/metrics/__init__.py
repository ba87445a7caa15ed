"""What the daemon counts: latencies, tokens, use of the hardware, power and cost; and how it is told."""

from inferd.metrics.latency import LatencyWindow, TokenClock, timings
from inferd.metrics.totals import Metrics

__all__ = ["LatencyWindow", "Metrics", "TokenClock", "timings"]
