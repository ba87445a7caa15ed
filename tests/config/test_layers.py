"""Layers of settings: their order, where values come from, and errors that name file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd.config.errors import ConfigError
from inferd.config.layers import Locations, load_config, parse_setting
from inferd.config.schema import Config


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locations:
    monkeypatch.delenv("INFERD_CONFIG", raising=False)
    (tmp_path / "etc" / "config.d").mkdir(parents=True)
    return Locations(tmp_path / "etc", tmp_path / "home" / "config.toml")


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_files_all_is_default(places: Locations) -> None:
    loaded = load_config(locations=places)
    assert loaded.config == Config()
    assert loaded.files == ()
    assert set(loaded.origins.values()) == {"default"}


def test_each_layer_wins_over_the_ones_below(places: Locations, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["max_queue", "max_clients", "max_client_requests", "max_frame", "out_buffer_bytes", "memory_limit"]
    layers = [
        places.system / "config.toml",
        places.system / "config.d" / "10-a.toml",
        places.system / "config.d" / "20-b.toml",
        places.user,
        places.user.parent / "named.toml",
    ]
    for number, path in enumerate(layers):
        body = "\n".join(f"{key} = {number + 1}" for key in keys[number:])
        put(path, f"[daemon]\n{body}\n")
    monkeypatch.setenv("INFERD_CONFIG", str(layers[-1]))
    loaded = load_config(overrides={"daemon.memory_limit": 9}, locations=places)
    assert [getattr(loaded.config.daemon, key) for key in keys] == [1, 2, 3, 4, 5, 9]
    wanted = [*map(str, layers), "command line"]
    assert [loaded.origins[f"daemon.{key}"] for key in keys] == wanted
    assert loaded.origins["daemon.drain_s"] == "default"
    assert loaded.files == tuple(layers)


def test_config_option_wins_over_the_variable(places: Locations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERD_CONFIG", "/nowhere.toml")
    named = put(places.user.parent / "n.toml", "preload = false")
    assert load_config(named, locations=places).config.preload is False


def test_the_log_variable_sets_the_level(places: Locations, monkeypatch: pytest.MonkeyPatch) -> None:
    put(places.user, "log.level = 'error'")
    monkeypatch.setenv("INFERD_LOG", "Debug")
    loaded = load_config(locations=places)
    assert (loaded.config.log.level, loaded.origins["log.level"]) == ("debug", "INFERD_LOG")
    assert load_config(overrides={"log.level": "info"}, locations=places).config.log.level == "info"
    monkeypatch.setenv("INFERD_LOG", "loud")
    with pytest.raises(ConfigError, match=r"INFERD_LOG: `log\.level`: invalid enum value 'loud'; one of: debug"):
        load_config(locations=places)


def test_tables_merge_and_lists_replace(places: Locations) -> None:
    put(places.system / "config.toml", 'plugins.disable = ["a"]\nplugin.kv.paged.x = 1\nmodels.m.path = "/m"')
    put(places.user, 'plugins.disable = ["b"]\nplugin.kv.paged.y = 2\nmodels.m.keep_alive_s = 1')
    config = load_config(locations=places).config
    assert config.plugins.disable == ("b",)
    assert config.plugin == {"kv": {"paged": {"x": 1, "y": 2}}}
    assert (config.models["m"].path, config.models["m"].keep_alive_s) == ("/m", 1.0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("engine.max_contex = 1", "unknown key `engine.max_contex` (did you mean `engine.max_context`?)"),
        ("max_context = 1", "unknown key `max_context` (did you mean `engine.max_context`?)"),
        ("engin.chunk = 1", "unknown key `engin` (did you mean `engine`?)"),
        ("models.m.engine.chunks = 1", "unknown key `models.m.engine.chunks` (did you mean `engine.chunk`?)"),
        ("models.m.plugins.xyz = 1", "unknown key `models.m.plugins.xyz`"),
        ("models.m.colour = 1", "unknown key `models.m.colour`"),
        ("plugin.atention.torch.x = 1", "unknown key `plugin.atention`"),
        ("engine.max_context = 'a'", "`engine.max_context`: expected `int`, got `str`"),
        ("engine.max_context = -1", "`engine.max_context`: expected `int` >= 0"),
        ("daemon.heartbeat_s = 0", "`daemon.heartbeat_s`: expected `float` > 0"),
        ("engine.dtype = 'fp64'", "`engine.dtype`: invalid enum value 'fp64'; one of: auto, fp32, bf16, fp16"),
        ("models.m.engine.dtype = 'x'", "`models.m.engine.dtype`: invalid enum value 'x'; one of: auto"),
        ("engine = 3", "`engine`: expected a table, got `int`"),
        ("plugin.kv.paged = 3", "`plugin.kv.paged`: expected a table, got `int`"),
        ("models.m = 3", "`models.m`: expected a table, got `int`"),
        ("preload = 1", "`preload`: expected `bool`, got `int`"),
        ("preload = ", "not valid TOML: "),
        ("preload = true\npreload = false", "not valid TOML: "),
    ],
)
def test_errors_name_file_and_key(places: Locations, text: str, wanted: str) -> None:
    path = put(places.user, text)
    with pytest.raises(ConfigError) as caught:
        load_config(locations=places)
    assert str(caught.value).startswith(f"{path}: {wanted}")


def test_the_layer_at_fault_is_named_though_a_higher_one_is_fine(places: Locations) -> None:
    path = put(places.system / "config.toml", "engine.chunk = 'x'")
    put(places.user, "engine.chunk = 8")
    with pytest.raises(ConfigError, match=r"`engine\.chunk`") as caught:
        load_config(locations=places)
    assert str(path) in str(caught.value)


def test_a_named_file_must_exist(places: Locations) -> None:
    with pytest.raises(ConfigError, match=r"/no/such\.toml: No such file"):
        load_config("/no/such.toml", locations=places)


def test_binary_and_huge_files_are_refused(places: Locations) -> None:
    places.user.parent.mkdir(parents=True)
    places.user.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(locations=places)
    places.user.write_bytes(b"#" * (1 << 21))
    with pytest.raises(ConfigError, match="no config file"):
        load_config(locations=places)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a.b=3", ("a.b", 3)),
        ("a.b = true ", ("a.b", True)),
        ("a=plain text", ("a", "plain text")),
        ('a="quoted"', ("a", "quoted")),
        ("a=[1, 2]", ("a", [1, 2])),
        ("a=", ("a", "")),
        ("a=x=y", ("a", "x=y")),
        ("a=1\nb=2", ("a", "1\nb=2")),
    ],
)
def test_settings_of_the_command_line(text: str, wanted: tuple[str, object]) -> None:
    assert parse_setting(text) == wanted


@pytest.mark.parametrize("text", ["a", "=3", ""])
def test_a_setting_needs_key_and_value(text: str) -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_setting(text)


@pytest.mark.parametrize("overrides", [{"engine": 1, "engine.chunk": 2}, {"a..b": 1}, {".a": 1}])
def test_senseless_overrides_are_refused(places: Locations, overrides: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="command line"):
        load_config(overrides=overrides, locations=places)


def test_model_settings_come_over_the_general_ones(places: Locations) -> None:
    put(places.user, "engine.chunk = 64\nmodels.m.engine.max_sequences = 2\nmodels.m.plugins.draft = 'ngram'")
    config = load_config(locations=places).config.for_model("m")
    assert (config.engine.chunk, config.engine.max_sequences, config.plugins.draft) == (64, 2, "ngram")
