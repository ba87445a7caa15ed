"""`inferd serve`: start the front, keep it until it is told to stop, return the exit code."""

from __future__ import annotations

import gc
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inferd.front.catalog import Catalog, StoreCatalog
from inferd.front.daemon import FrontDaemon, LoadWatch
from inferd.front.errors import EX_FAILURE, EX_NOINPUT, StartError
from inferd.front.sockets import open_sockets
from inferd.log import clean, make_logger

if TYPE_CHECKING:
    from inferd.config.paths import RuntimePaths
    from inferd.config.schema import Config

ENGINE_MODULE = "inferd.engine.worker"
TEXT_MODULE = "inferd.text"
GRAMMAR_MODULE = "inferd.grammar"
FILES = 16384
SETTINGS_HINT = " (`inferd config show --origin` says where each setting comes from)"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(config: Config, *, model: str | None, paths: RuntimePaths, on_load: LoadWatch = lambda *_: None) -> int:
    """Serve `model` (a name or path; default: the configured one) until stopped; the exit code.

    0 after a drain; 1 when the model cannot be loaded (with `preload = false` only a request finds out); 66 when it
    is absent; 75 when a daemon already runs there; 78 for a setting or folder that cannot be used. `on_load` is told
    how loads go.
    """
    from inferd.load.store import Store

    catalog = StoreCatalog(Store(paths.models), {name: own.path for name, own in config.models.items() if own.path})
    wanted = model or config.default_model
    try:
        default = _default(catalog, wanted) if model or config.preload else wanted
        return run(
            config,
            paths,
            catalog,
            default=default,
            engine_module=ENGINE_MODULE,
            must_load=True,
            on_load=on_load,
        )
    except StartError as error:
        print(f"inferd: {clean(str(error))}", file=sys.stderr)
        return error.exit_code


def run(
    config: Config,
    paths: RuntimePaths,
    catalog: Catalog,
    *,
    default: str,
    engine_module: str,
    text_module: str = TEXT_MODULE,
    grammar_module: str | None = GRAMMAR_MODULE,
    script: dict[str, Any] | None = None,
    must_load: bool = False,
    on_load: LoadWatch = lambda *_: None,
    announce: Callable[[], None] = lambda: None,
) -> int:
    """Bind, serve, unbind. Raises StartError; with `must_load` also when the default model fails before it served.

    `announce` is called once clients can connect.
    """
    _raise_file_limit()
    gc.freeze()  # modules and code live as long as we do: no collection need look at them again
    log = make_logger(config.log, "front")
    sockets = open_sockets(config.daemon, paths)
    daemon = None
    try:
        daemon = FrontDaemon(
            config,
            paths,
            sockets,
            catalog,
            log,
            default=default,
            engine_module=engine_module,
            text_module=text_module,
            grammar_module=grammar_module,
            script=script,
            must_load=must_load,
            on_load=on_load,
        )
        tcp = {"tcp": config.daemon.tcp} if config.daemon.tcp else {}
        log.info("serving", runtime=str(paths.runtime), model=default, instance=daemon.instance, **tcp)
        with _signals(daemon):
            if config.preload:
                daemon.preload()
            announce()
            daemon.run()
        failure = daemon.start_failure
    finally:
        if daemon is not None:
            daemon.close()
        sockets.close(paths)
    if failure:
        raise StartError(f"cannot serve {default}: {failure}{SETTINGS_HINT}", EX_FAILURE)
    return 0


def _raise_file_limit() -> None:
    """Allow as many connections as the system lets us; its soft default of 1024 files is less than our clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _default(catalog: Catalog, wanted: str) -> str:
    """Return the name of the default model, which must be there before anything is bound."""
    try:
        return catalog.resolve(wanted).name
    except ValueError as error:
        raise StartError(str(error), EX_NOINPUT) from None


@contextmanager
def _signals(daemon: FrontDaemon) -> Iterator[None]:
    """Turn a stop signal into a drain, the second into an immediate stop; the loop is woken by a byte."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    stops = 0

    def read() -> None:
        nonlocal stops
        for number in reader.recv(64):
            if number in STOP_SIGNALS:
                stops += 1
                daemon.drain(None if stops == 1 else 0.0)

    before = {number: signal.signal(number, lambda _number, _frame: None) for number in STOP_SIGNALS}
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    daemon.loop.add(reader.fileno(), read)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()
