"""The default model against transformers on weights dequantised by the `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inferd.load.vocab import open_vocabulary
from tests.model.harness import BACKENDS, Steps, assert_close, load
from tests.smollm2 import smollm2_path

pytestmark = [pytest.mark.smollm2, pytest.mark.timeout(300)]
SUBJECTS = (
    "the moon", "rivers", "bread", "gravity", "cats", "a lighthouse", "prime numbers", "winter", "copper", "jazz",
    "the number seven", "coral reefs", "chess", "paper", "volcanoes", "bees", "a violin", "deserts", "rain", "maps",
)  # fmt: skip
TOLERANCE = 1e-4
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def oracle() -> Any:
    return transformers_model(smollm2_path())


def transformers_model(path: Path) -> Any:
    """Build a transformers model; q and k rows leave the order of the GGUF converter."""
    from gguf import GGUFReader, dequantize
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(path)

    def key(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    heads = {"q": key("attention.head_count"), "k": key("attention.head_count_kv")}
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=key("embedding_length"),
        intermediate_size=key("feed_forward_length"),
        num_hidden_layers=key("block_count"),
        num_attention_heads=heads["q"],
        num_key_value_heads=heads["k"],
        rms_norm_eps=key("attention.layer_norm_rms_epsilon"),
        rope_theta=key("rope.freq_base"),
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_output": "self_attn.o_proj",
        **{f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"},
        **{f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
    }
    state: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        stem = tensor.name.removesuffix(".weight")
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        if not stem.startswith("blk."):
            state[f"{names[stem]}.weight"] = values
            continue
        _, layer, part = stem.split(".")
        if part in ("attn_q", "attn_k"):
            count = heads[part[-1]]
            values = values.view(count, -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
        state[f"model.layers.{layer}.{parts[part]}.weight"] = values
    model = LlamaForCausalLM(config)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model.eval()


def oracle_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]


def chats(path: Path) -> list[list[int]]:
    vocabulary = open_vocabulary(path)
    text = "<|im_start|>user\nTell me something about {}.<|im_end|>\n<|im_start|>assistant\n"
    return [vocabulary.tokenizer.encode(text.format(subject), add_special_tokens=False).ids for subject in SUBJECTS]


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits(default_model: Path, oracle: Any, backend: str) -> None:
    tokens = [(i * 7919 + 13) % 49000 for i in range(90)]
    steps = Steps(load(default_model, context=256), BACKENDS[backend](), poison=True)
    parts = [steps.run([("a", tokens[a:b])])[0] for a, b in ((0, 50), (50, 85), *((i, i + 1) for i in range(85, 90)))]
    assert_close(torch.cat(parts), oracle_logits(oracle, tokens), TOLERANCE)


def test_greedy_chats(default_model: Path, oracle: Any) -> None:
    """Twenty chats of 64 tokens in one batch; ids are equal wherever the oracle's choice is clear."""
    prompts = chats(default_model)
    steps = Steps(load(default_model, context=256), BACKENDS["torch"](), num_blocks=20 * 32)
    rows = steps.run([(str(i), prompt) for i, prompt in enumerate(prompts)])
    outputs = [[int(row[-1].argmax())] for row in rows]
    for _ in range(NEW_TOKENS - 1):
        rows = steps.run([(str(i), output[-1:]) for i, output in enumerate(outputs)])
        for output, row in zip(outputs, rows, strict=True):
            output.append(int(row[-1].argmax()))
    skipped = 0
    for prompt, output in zip(prompts, outputs, strict=True):
        logits = oracle_logits(oracle, prompt + output)[len(prompt) - 1 : -1]
        best = logits.topk(2, dim=-1)
        clear = (best.values[:, 0] - best.values[:, 1]) > 10 * TOLERANCE * logits.abs().amax(-1)
        skipped += int((~clear).sum())
        assert torch.equal(best.indices[clear, 0], torch.tensor(output)[clear])
    assert skipped < 0.02 * len(prompts) * NEW_TOKENS
