"""The built-in draft models, described without importing them."""

from __future__ import annotations

from inferd.plugin.contracts import Effect, PluginSpec
from inferd_plugins.draft.ngram import NgramOptions

PLUGINS = (
    PluginSpec(name="none", kind="draft", target="inferd_plugins.draft.none:NoDraft", exactness="bit", priority=10),
    PluginSpec(
        name="ngram",
        kind="draft",
        target="inferd_plugins.draft.ngram:NgramDraft",
        exactness="token",
        effects=(Effect("decode", "tpot", "better"), Effect("prefill", "ttft", "none")),
        baseline="none",
        options=NgramOptions,
    ),
)
