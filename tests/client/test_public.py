"""The public names of the package: lazily loaded, all there, the same for type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import inferd_client


def test_every_public_name_loads_and_checkers_see_the_same_ones():
    for name in inferd_client.__all__:
        assert getattr(inferd_client, name) is not None
    assert set(inferd_client.__all__) == set(inferd_client._HOME)
    tree = ast.parse(Path(inferd_client.__file__).read_text())
    seen = [
        (node.module, alias.name)
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert {name: module for module, name in seen} == inferd_client._HOME
    assert set(inferd_client.__all__) <= set(dir(inferd_client))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Clint"):
        inferd_client.Clint  # noqa: B018


def test_the_protocol_alone_loads_no_sockets():
    program = "import sys, inferd_client.protocol; print('zmq' in sys.modules, 'asyncio' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_both_faces_have_the_same_methods_and_options():
    import inspect

    def public(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(value).parameters)
            for name, value in vars(kind).items()
            if not name.startswith("_") and inspect.isfunction(value)
        }

    assert public(inferd_client.Client) == public(inferd_client.AsyncClient)
    assert public(inferd_client.Stream) == public(inferd_client.AsyncStream)
    assert public(inferd_client.EventStream) == public(inferd_client.AsyncEventStream)
