"""inferd: the daemon. Processes, sockets, engine, loading, command line."""

__version__ = "0.1.0"
