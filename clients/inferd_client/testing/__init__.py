"""A daemon without a model for the tests of applications: real sockets and front, scripted answers.

`FakeDaemon` works anywhere; under pytest the fixture `fake_inferd` (registered by the distribution) starts one.
Neither needs more than the base install. This package imports nothing heavy.
"""

from .daemon import FakeDaemon, FakeDaemonError

__all__ = ["FakeDaemon", "FakeDaemonError"]
