"""The argument structs of `src/abi.h`, field for field. Pointers are addresses of tensors that someone keeps."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p

import torch

GROUP = 32
GROUP_BYTES = 44
"""Of one group of a quantized row."""
OUTLIER_BYTES = 8
"""Of a value that a quantized row keeps, and its column."""
SOURCE_PLAIN, SOURCE_NORM, SOURCE_SILU = range(3)
NUMBERS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
"""`enum number` by dtype."""
KV_NUMBERS = {**NUMBERS, torch.int8: 3, torch.float8_e4m3fn: 4}
"""The same of a KV cache."""


def address_of(tensor: torch.Tensor | None) -> int | None:
    """Return what a field holds for a tensor, or for none."""
    return None if tensor is None else tensor.data_ptr()


class Int8RowsStruct(Structure):
    _fields_ = [("groups", c_void_p), ("outliers", c_void_p), ("counts", c_void_p), ("halves", c_void_p)]


class QuantArgs(Structure):
    _fields_ = [
        ("rows", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("weight", c_void_p),
        ("plain", c_void_p),
        ("out", Int8RowsStruct),
        ("columns", c_int32),
        ("source", c_int32),
        ("eps", c_float),
        ("outlier_above", c_float),
        ("deferred", c_int32),
    ]


class GemmArgs(Structure):
    _fields_ = [
        ("rows", c_void_p),
        ("x", Int8RowsStruct),
        ("plain", c_void_p),
        ("plain_stride", c_int64),
        ("source", c_void_p),
        ("weights", c_void_p),
        ("bias", c_void_p),
        ("residual", c_void_p),
        ("y", c_void_p),
        ("y_stride", c_int64),
        ("residual_stride", c_int64),
        ("n", c_int32),
        ("columns", c_int32),
        ("groups", c_int32),
        ("bits", c_int32),
        ("halves", c_int32),
        ("zero", c_int32),
        ("number", c_int32),
        ("has_min", c_int32),
    ]


class EmbedArgs(Structure):
    _fields_ = [
        ("rows", c_void_p),
        ("ids", c_void_p),
        ("weight", GemmArgs),
        ("y", c_void_p),
        ("y_stride", c_int64),
        ("scale", c_float),
    ]


class GatherArgs(Structure):
    _fields_ = [
        ("rows", c_void_p),
        ("index", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("y", c_void_p),
        ("y_stride", c_int64),
        ("columns", c_int32),
    ]


class WriteArgs(Structure):
    _fields_ = [
        ("rows", c_void_p),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("q_stride", c_int64),
        ("k_stride", c_int64),
        ("v_stride", c_int64),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("q_out", c_void_p),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("width", c_int32),
        ("rope", c_int32),
        ("block_size", c_int32),
        ("number", c_int32),
        ("eps", c_float),
        ("k_scales", c_void_p),
        ("v_scales", c_void_p),
        ("block_stride", c_int64),
        ("scale_stride", c_int64),
    ]


class AttendArgs(Structure):
    _fields_ = [
        ("sequences", c_void_p),
        ("q", c_void_p),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("cu_seqlens", c_void_p),
        ("context_lens", c_void_p),
        ("block_tables", c_void_p),
        ("table_stride", c_int64),
        ("out", c_void_p),
        ("partial", c_void_p),
        ("pending", c_void_p),
        ("partial_tasks", c_int64),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("width", c_int32),
        ("block_size", c_int32),
        ("number", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("task_base", c_void_p),
        ("k_scales", c_void_p),
        ("v_scales", c_void_p),
        ("block_stride", c_int64),
        ("scale_stride", c_int64),
    ]


class HeadArgs(Structure):
    _fields_ = [
        ("rows", c_void_p),
        ("gemm", GemmArgs),
        ("slots", c_void_p),
        ("row_slots", c_void_p),
        ("row_masks", c_void_p),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("sample_rows", c_void_p),
        ("segments", c_void_p),
        ("peak", c_void_p),
        ("index", c_void_p),
    ]


class AdvanceArgs(Structure):
    _fields_ = [
        ("rows", c_void_p),
        ("steps", c_void_p),
        ("step", c_void_p),
        ("chosen", c_void_p),
        ("kept", c_void_p),
        ("token_ids", c_void_p),
        ("context_lens", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("block_tables", c_void_p),
        ("most_rows", c_int64),
        ("most_tokens", c_int64),
        ("most_sequences", c_int64),
        ("most_blocks", c_int64),
        ("groups", c_int32),
        ("block_size", c_int32),
    ]


class ArgmaxArgs(Structure):
    _fields_ = [
        ("rows", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("peak", c_void_p),
        ("index", c_void_p),
        ("columns", c_int32),
    ]


class ProbeArgs(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_int64),
        ("turns", c_int64),
        ("out", c_void_p),
        ("kind", c_int32),
    ]


class PackArgs(Structure):
    _fields_ = [
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("mins", c_void_p),
        ("out", c_void_p),
        ("n", c_int32),
        ("columns", c_int32),
        ("group", c_int32),
        ("bits", c_int32),
        ("number", c_int32),
        ("zero", c_int32),
    ]
