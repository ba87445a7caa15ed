"""What the global options say, resolved only when a command asks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferd.cli.errors import CliError
from inferd.cli.exits import Exit

if TYPE_CHECKING:
    from inferd.config.layers import Loaded
    from inferd.config.paths import RuntimePaths
    from inferd.load.store import Store


class State:
    """Handed to commands as `ctx.obj`."""

    def __init__(
        self, config_path: str | None, settings: tuple[str, ...], runtime: str | None, key_file: str | None = None
    ) -> None:
        self.config_path = config_path
        self.settings = settings
        self.runtime = runtime
        self.key_file = key_file
        """Of a daemon on tcp."""

    def override(self, more: Mapping[str, Any], *, config_path: str | None, settings: tuple[str, ...]) -> State:
        """Return a state with a command's own options on top."""
        state = State(config_path or self.config_path, (*self.settings, *settings), self.runtime, self.key_file)
        state._more = more
        return state

    _more: Mapping[str, Any] = {}

    @cached_property
    def loaded(self) -> Loaded:
        from inferd.config.layers import load_config, parse_setting

        overrides = dict(map(parse_setting, self.settings)) | dict(self._more)
        if self.runtime:
            overrides["paths.runtime"] = self.runtime
        return load_config(self.config_path, overrides)

    @property
    def user_file(self) -> Path:
        """The file that `config set` and `plugins disable` write: the one of --config, else the user's."""
        from inferd.config.layers import Locations

        return Path(self.config_path).expanduser() if self.config_path else Locations.standard().user

    @cached_property
    def paths(self) -> RuntimePaths:
        from inferd.config.paths import RuntimePaths

        return RuntimePaths.of(self.loaded.config)

    @cached_property
    def store(self) -> Store:
        from inferd.load.store import Store

        return Store(self.paths.models)

    def resolve(self, model: str) -> Path:
        """Return the file or folder of a model. Raises CliError with the remedy."""
        from inferd.load.errors import LoadError

        try:
            return self.store.resolve(model)
        except LoadError as error:
            raise CliError(str(error), Exit.NO_MODEL) from None


pass_state = click.make_pass_decorator(State)
