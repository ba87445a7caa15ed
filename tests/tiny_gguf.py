"""Write a tiny model as GGUF with the `gguf` package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch

from tests.tiny import Tiny, weights
from tests.tiny_tokenizer import BOS_ID, CHAT_TEMPLATE, EOS_ID, IM_END_ID, SPECIALS, vocabulary

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

_TOKEN_NORMAL, _TOKEN_CONTROL = 1, 3


def gguf_name(hf_name: str) -> str:
    """Return the GGUF name of a Hugging Face tensor; names that are no HF names stay."""
    stem, _, kind = hf_name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{_NAMES.get(stem, stem)}.{kind}"
    _, _, index, rest = stem.split(".", 3)
    return f"blk.{index}.{_NAMES[rest]}.{kind}"


def permuted(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of each head from halves to pairs, as llama GGUF files store q and k."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape).contiguous()


def gguf_weights(tiny: Tiny) -> dict[str, torch.Tensor]:
    """Return the float32 tensors by GGUF name, q and k permuted where the architecture wants it."""
    out = {}
    for name, tensor in weights(tiny).items():
        heads = {"attn_q": tiny.heads, "attn_k": tiny.num_kv_heads}.get(gguf_name(name).split(".")[-2], 0)
        out[gguf_name(name)] = permuted(tensor, heads) if heads and tiny.arch == "llama" else tensor
    return out


def write_gguf(path: Path, tiny: Tiny, quant: str, types: Mapping[str, str]) -> Path:
    """Write `path`/model.gguf."""
    path.mkdir(parents=True, exist_ok=True)
    file = path / "model.gguf"
    writer = gguf.GGUFWriter(file, tiny.arch)
    _add_config(writer, tiny)
    _add_tokenizer(writer, tiny)
    for name, tensor in gguf_weights(tiny).items():
        kind = types.get(name, quant if tensor.ndim == 2 else "F32")
        data = encode(tensor.numpy(), kind, seed=len(name) + tiny.seed)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_config(writer: gguf.GGUFWriter, tiny: Tiny) -> None:
    writer.add_context_length(tiny.context)
    writer.add_embedding_length(tiny.hidden)
    writer.add_block_count(tiny.layers)
    writer.add_feed_forward_length(tiny.inner)
    writer.add_head_count(tiny.heads)
    if tiny.kv_heads is not None:
        writer.add_head_count_kv(tiny.kv_heads)
    if tiny.head_dim is not None:
        writer.add_key_length(tiny.head_dim)
        writer.add_value_length(tiny.head_dim)
    writer.add_layer_norm_rms_eps(tiny.norm_eps)
    writer.add_rope_freq_base(tiny.rope_theta)
    writer.add_rope_dimension_count(tiny.head_width)
    writer.add_vocab_size(tiny.vocab)
    for key, value in (tiny.rope or {}).items():
        if key == "rope_type" and value != "llama3":
            writer.add_string(f"{tiny.arch}.rope.scaling.type", value)
        elif key == "factor" and tiny.rope and tiny.rope["rope_type"] != "llama3":
            writer.add_float32(f"{tiny.arch}.rope.scaling.factor", value)
        elif key == "original_max_position_embeddings":
            writer.add_uint32(f"{tiny.arch}.rope.scaling.original_context_length", value)


def _add_tokenizer(writer: gguf.GGUFWriter, tiny: Tiny) -> None:
    tokens, merges = vocabulary(tiny.vocab)
    special = [token in SPECIALS or token.startswith("<|unused_") for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([_TOKEN_CONTROL if flag else _TOKEN_NORMAL for flag in special])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_eot_token_id(IM_END_ID)
    writer.add_add_bos_token(tiny.add_bos)
    writer.add_chat_template(CHAT_TEMPLATE)


def encode(values: np.ndarray, kind: str, seed: int = 0) -> np.ndarray:
    """Return `values` in the GGUF type `kind`, ready for `GGUFWriter.add_tensor`."""
    if kind.endswith("_K"):
        return random_k_blocks(values.shape, kind, seed)
    if kind == "F32":
        return np.ascontiguousarray(values, dtype=np.float32)
    return gguf.quants.quantize(values.astype(np.float32), gguf.GGMLQuantizationType[kind])


def random_k_blocks(shape: tuple[int, ...], kind: str, seed: int) -> np.ndarray:
    """Return random K-quant bytes [..., row bytes] whose values have variance near 1 / row length."""
    random = np.random.default_rng(seed)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    if shape[-1] % block_size:
        raise ValueError(f"{kind} needs rows of {block_size} values, not {shape[-1]}")
    blocks = random.integers(0, 256, (*shape[:-1], shape[-1] // block_size, block_bytes), dtype=np.uint8)
    raw = blocks.reshape(-1, block_bytes)
    target = shape[-1] ** -0.5
    if kind == "Q6_K":
        raw[:, -18:-2] = random.integers(32, 127, (len(raw), 16), dtype=np.uint8)
        raw[:, -2:] = np.frombuffer(np.float16(target / (18.5 * 84)).tobytes(), np.uint8)
    else:
        top = {"Q4_K": 15, "Q5_K": 31}[kind]
        scale = target / (0.29 * (top + 1) * 36)
        raw[:, 0:2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        raw[:, 2:4] = np.frombuffer(np.float16(scale * top / 2).tobytes(), np.uint8)
        raw[:, 8:12] = raw[:, 4:8]  # same six bits for scale and min, so that values centre on zero
        raw[:, 12:16] = (raw[:, 12:16] & 0x0F) * 0x11
    return blocks.reshape(*shape[:-1], -1)
