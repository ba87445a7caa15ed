"""transformers on the default model's file: metadata and weights through the `gguf` package alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def row_order(rows: int, heads: int) -> torch.Tensor:
    """Return where in a llama GGUF file each row of q or k lies: even rows were a head's first half."""
    per_head = torch.arange(rows).view(heads, -1)
    return torch.cat((per_head[:, 0::2], per_head[:, 1::2]), dim=1).flatten()


def load(path: Path) -> Any:
    """Return a float32 eager `LlamaForCausalLM` with the dequantised weights of a llama GGUF file."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    reader = gguf.GGUFReader(path)
    config = LlamaConfig(**_config(reader))
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    weights = dict(_weights(reader, config))
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    assert all(not parameter.is_meta for parameter in model.parameters())
    return model.float().eval()


def _config(reader: gguf.GGUFReader) -> dict[str, Any]:
    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    return {
        "attn_implementation": "eager",
        "vocab_size": int(field("vocab_size")),
        "hidden_size": int(field("embedding_length")),
        "intermediate_size": int(field("feed_forward_length")),
        "num_hidden_layers": int(field("block_count")),
        "num_attention_heads": int(field("attention.head_count")),
        "num_key_value_heads": int(field("attention.head_count_kv")),
        "rms_norm_eps": float(field("attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(field("rope.freq_base"))},
        "max_position_embeddings": int(field("context_length")),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
    }


def _weights(reader: gguf.GGUFReader, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        stem, kind = tensor.name.rsplit(".", 1)
        if stem in _ENDS:
            yield f"{_ENDS[stem]}.{kind}", values
            continue
        _, layer, part = stem.split(".")
        if part in heads:
            values = values[row_order(len(values), heads[part])]
        yield f"model.layers.{layer}.{_PARTS[part]}.{kind}", values


@torch.inference_mode()
def logits(model: Any, tokens: Sequence[int], last: int = 0) -> torch.Tensor:
    """Return the logits [T, vocab] of one sequence, of its last `last` positions only if that is set."""
    return model(torch.tensor([list(tokens)]), use_cache=False, logits_to_keep=last).logits[0].float()
