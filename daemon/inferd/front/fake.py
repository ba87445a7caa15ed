"""The daemon without models, for applications' tests: `python -m inferd.front.fake --runtime DIR`.

The front is the real one; engine and text processes are scripted. The base install suffices. Prints
`ready DIR` on standard output when clients can connect; a drain ends it as it ends the daemon.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from inferd.config.paths import RuntimePaths
from inferd.config.schema import Config
from inferd.engine.scripted import Script
from inferd.front.catalog import ScriptedCatalog
from inferd.front.errors import StartError
from inferd.front.main import run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m inferd.front.fake", description=__doc__)
    parser.add_argument("--runtime", required=True, type=Path, help="folder for the sockets, mode 0700")
    parser.add_argument("--state", type=Path, help="folder for what outlives it; a temporary one when not given")
    parser.add_argument("--script", default="{}", help="JSON: what the engine says and how it fails (`Script`)")
    parser.add_argument("--config", default="{}", help="JSON: settings as in config.toml")
    options = parser.parse_args(arguments)
    try:
        script = msgspec.json.decode(options.script, type=Script)
        config = msgspec.json.decode(options.config, type=Config)
    except msgspec.DecodeError as error:
        parser.error(str(error))
    folder = options.runtime.absolute()
    try:
        with ExitStack() as stack:
            state = options.state or Path(stack.enter_context(TemporaryDirectory(prefix="inferd-state-")))
            return _serve(config, script, RuntimePaths(runtime=folder, models=folder, cache=folder, state=state))
    except StartError as error:
        print(f"inferd: {error}", file=sys.stderr)
        return error.exit_code


def _serve(config: Config, script: Script, paths: RuntimePaths) -> int:
    return run(
        config,
        paths,
        ScriptedCatalog(script.models, script.size),
        default=script.models[0],
        engine_module="inferd.engine.scripted",
        text_module="inferd.front.fake_text",
        grammar_module=None,  # the script says what is answered
        script=msgspec.to_builtins(script),
        announce=lambda: print("ready", paths.runtime, flush=True),
    )


if __name__ == "__main__":
    sys.exit(main())
