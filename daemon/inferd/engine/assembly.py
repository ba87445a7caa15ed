"""What every rank of a worker derives from the settings: checkpoint, plugins, sizes; and its runner.

The steps are deterministic, so each rank repeats them and the manifests and shapes must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

import torch

from inferd.engine.device import has_display, is_there
from inferd.engine.profile import Free, measure_steps
from inferd.engine.runner import Runner
from inferd.engine.sizing import (
    DEFAULT_CHUNK,
    DEFAULT_SEQUENCES,
    ONEDNN_BYTES,
    MemoryBudget,
    activation_bytes,
    choose_depth,
    choose_reserve,
    derive_shape,
    fit_pool,
    weight_bytes,
)
from inferd.load.checkpoint import Checkpoint, open_checkpoint
from inferd.load.errors import LoadError
from inferd.load.repack_cache import RepackCache
from inferd.model import expand_gqa, kv_groups
from inferd.model.build import build_decoder
from inferd.plugin.manager import PluginManager
from inferd.plugin.resolution import Resolution
from inferd.plugin.resolver import resolve
from inferd.plugin.types import (
    KINDS,
    Accept,
    Kind,
    KVFormat,
    KVLayout,
    ModelSpec,
    Placement,
    ProbeContext,
    Reject,
    TensorMeta,
)
from inferd_kernels.available import runs_on_triton, why_no_triton
from inferd_kernels.cpu.library import load
from inferd_kernels.cpu.threads import usable_cores
from inferd_kernels.linear import LinearKernels, default_kernels

if TYPE_CHECKING:
    from inferd.config.schema import Config, Engine
    from inferd.engine.settings import WorkerSettings
    from inferd.engine.shape import EngineShape
    from inferd.model.decoder import Decoder
    from inferd.plugin.contracts import Architecture

Progress = Callable[[str, int, int], None]
"""Called with (phase, done, total)."""

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Assembly:
    """A model ready to be built: everything is chosen, nothing is loaded."""

    settings: WorkerSettings
    checkpoint: Checkpoint
    resolution: Resolution
    device: str
    dtype: str
    spec: ModelSpec
    """As computed: with expanded KV heads where that baseline was asked for."""
    layouts: tuple[KVLayout, ...]
    shape: EngineShape
    placement: Placement
    kernels: LinearKernels

    @property
    def engine(self) -> Engine:
        return self.settings.config.engine

    @property
    def kv_bytes(self) -> int:
        return self.shape.num_blocks * sum(layout.bytes_per_block for layout in self.layouts)


def assemble(settings: WorkerSettings) -> Assembly:
    """Choose plugins and sizes. Raises LoadError, PluginError or ValueError saying what does not fit."""
    config = settings.config
    device = choose_device(config.engine.device)
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)  # Triton launches, and graphs are captured, on the current one
    dtype = choose_dtype(config.engine.dtype, device)
    checkpoint = open_checkpoint(Path(settings.path))
    context = _context(config.engine, checkpoint, device, dtype)
    resolution = _resolve(config, checkpoint, context)
    stored, kernels = tuple(_with_forms(checkpoint, resolution)), _kernels(config.engine, device)
    spec = expand_gqa(resolution.model) if config.engine.expand_gqa else resolution.model
    kv_format = context.kv_format
    if config.engine.kv_format == "auto" and _rounds(stored, kernels, device):
        kv_format = _rounded_format(context, resolution)
    layouts = tuple(
        resolution.attention.kv_layout(group, kv_format, config.engine.block_size) for group in kv_groups(spec)
    )
    placement = resolution.parallel.place(spec, [device])
    shape = _shape(settings, stored, resolution, spec, layouts, device, dtype, kernels)
    depth, why = choose_depth(
        config.engine.overlap,
        drafting=resolution.draft.active,
        retains=resolution.kv.retains,
        ranks=placement.world,
        queued=runs_on_triton(device, asked=kernels.triton),
    )
    shape = replace(shape, depth=depth, origin={**shape.origin, "depth": why})
    return Assembly(
        settings=settings,
        checkpoint=checkpoint,
        resolution=resolution,
        device=device,
        dtype=dtype,
        spec=spec,
        layouts=layouts,
        shape=shape,
        placement=placement,
        kernels=kernels,
    )


def build_runner(assembly: Assembly, rank: int, progress: Progress | None = None) -> Runner:
    """Load the weights of one rank and put its runner together.

    On a GPU the pool is sized by what is left once the weights are there and the largest steps have run: see the
    runner's `shape`. Raises LoadError with the numbers where that is too little.
    """
    resolution, placement = assembly.resolution, assembly.placement.ranks[rank]
    try:
        decoder = build_decoder(
            resolution.model,
            assembly.checkpoint,
            resolution.architecture.tensors(resolution.model, assembly.checkpoint.source),
            resolution.quantizer,
            device=placement.device,
            dtype=TORCH_DTYPES[assembly.dtype],
            context=assembly.shape.max_context,
            placement=placement,
            expand_gqa=assembly.engine.expand_gqa,
            progress=progress,
            kernels=assembly.kernels,
            cache=_repack_cache(assembly.settings),
        )
    except torch.OutOfMemoryError as error:
        message = " ".join(str(error).split())
        raise LoadError(f"the weights do not fit: use a smaller or further quantized model ({message})") from error
    capture = not why_eager(assembly, decoder)
    if capture and assembly.device.startswith("cpu"):
        _share_cores(assembly.shape.threads, assembly.settings.runtime)

    def make(shape: EngineShape, eager_bytes: int = 0) -> Runner:
        return Runner(
            decoder,
            resolution.attention,
            assembly.layouts,
            shape,
            device=placement.device,
            dtype=TORCH_DTYPES[assembly.dtype],
            strategy=resolution.parallel,
            placement=placement,
            capture=capture,
            triton=assembly.kernels.triton,
            eager_bytes=eager_bytes,
        )

    if not assembly.device.startswith("cuda") or assembly.placement.world > 1:
        return make(assembly.shape)
    if progress is not None:
        progress("measuring the largest steps", 0, 0)
    torch.cuda.empty_cache()
    return make(*measured_shape(assembly, decoder.weight_bytes, make, lambda: _free(assembly.device)))


class Sized(NamedTuple):
    shape: EngineShape
    eager_bytes: int
    """What steps that are no graphs take beside graphs."""


def measured_shape(
    assembly: Assembly, weights: int, make: Callable[[EngineShape], Runner], memory: Callable[[], Free]
) -> Sized:
    """Return the shape with the pool that fits beside loaded weights and the largest steps. Raises LoadError."""
    shape, limit = assembly.shape, assembly.engine.memory
    found = measure_steps(lambda blocks: make(replace(shape, num_blocks=blocks)), shape, len(assembly.layouts), memory)
    grant = max(1, found.free - shape.device_reserve + weights)
    budget = MemoryBudget(
        min(grant, limit) if limit else grant,
        weights,
        found.step,
        process=0,
        measured=True,
        reserve=shape.device_reserve,
    )
    return Sized(fit_pool(shape, assembly.engine, assembly.layouts, budget, on_host=False), found.eager)


def _free(device: str) -> Free:
    """Ask the driver, once the device is done; what torch keeps for later counts as taken."""
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(torch.device(device))
    return Free(total, free)


def _kernels(engine: Engine, device: str) -> LinearKernels:
    """Return the linear kernels of the device: Triton's and cuBLAS on a GPU, on the CPU those asked for."""
    if runs_on_triton(device, asked=engine.linear == "triton"):
        from inferd_kernels.triton.linear import gpu_kernels

        return gpu_kernels(device.split(":")[0])
    if engine.linear == "triton":
        raise LoadError(f"engine.linear = 'triton', but {why_no_triton(device)}")
    return default_kernels(engine.linear if device.startswith("cpu") else "torch")


def _repack_cache(settings: WorkerSettings) -> RepackCache | None:
    limit = settings.config.engine.repack_cache
    return RepackCache(Path(settings.cache), limit) if settings.cache and limit else None


def _share_cores(threads: int, runtime: str) -> None:
    """Give the cores to the compiled kernels, in turns with other models of the daemon; torch does little here."""
    load().set_threads(threads)
    load().share_cores(Path(runtime) if runtime else None)
    torch.set_num_threads(1)


def why_eager(assembly: Assembly, decoder: Decoder) -> str:
    """Return why the steps of this model are not recorded; empty = they are."""
    plugins = assembly.resolution.not_capture_safe(assembly.device)
    if plugins:
        return f"not capture-safe: {', '.join(plugins)}"
    if assembly.placement.world > 1:
        return "the model runs on several ranks"
    if assembly.device.startswith("cpu") and assembly.kernels.triton:
        return "Triton's interpreter records nothing"
    if not assembly.device.startswith("cpu"):
        return why_no_triton(assembly.device) or ("" if assembly.engine.graphs else "engine.graphs is off")
    return decoder.eager_because


def choose_device(wanted: str) -> str:
    """Return the device to run on; a device that was asked for by name is never replaced."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = wanted.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise LoadError(f"engine.device = {wanted!r}: known are auto, cpu, cuda, cuda:N")
    if kind == "cuda" and not is_there(wanted):
        count = torch.cuda.device_count() or "no"
        raise LoadError(f"engine.device = {wanted!r}, but torch sees {count} CUDA device(s); use `auto` or `cpu`")
    return wanted


def choose_dtype(wanted: str, device: str) -> str:
    """float32 on the CPU, where torch computes it fastest for few rows; bfloat16 on a GPU."""
    if wanted != "auto":
        return wanted
    return "bf16" if device.startswith("cuda") else "fp32"


def _resolve(config: Config, checkpoint: Checkpoint, context: ProbeContext) -> Resolution:
    pins: dict[Kind, str] = {kind: getattr(config.plugins, kind) for kind in KINDS}
    manager = PluginManager(config.plugins.disable).load()
    return resolve(manager, context, pins, lambda arch: _read_spec(arch, checkpoint), options=config.plugin)


def _context(engine: Engine, checkpoint: Checkpoint, device: str, dtype: str) -> ProbeContext:
    return ProbeContext(
        architecture_name=checkpoint.architecture_name,
        device=device,
        dtype=dtype,
        source=checkpoint.source,
        weight_types=frozenset(meta.dtype for meta in checkpoint.tensors().values() if len(meta.shape) > 1),
        kv_format=_kv_format(engine, dtype),
        max_draft=engine.max_draft,
    )


def _read_spec(architecture: Architecture, checkpoint: Checkpoint) -> ModelSpec:
    """Let the architecture read the configuration; say of which file it is that it cannot take."""
    try:
        return architecture.spec(checkpoint.config())
    except LoadError:
        raise
    except ValueError as error:
        raise LoadError(f"{checkpoint.path}: {error}") from error


def _kv_format(engine: Engine, dtype: str) -> KVFormat:
    wanted = dtype if engine.kv_format == "auto" else engine.kv_format
    return next(known for known in get_args(KVFormat) if known == wanted)


def _rounded_format(context: ProbeContext, resolution: Resolution) -> KVFormat:
    """Return the KV format that the attention plugin is fastest on where rows are rounded anyway."""
    backend = resolution.attention
    if backend.rounded_kv is None:
        return context.kv_format
    rounded = replace(context, kv_format=backend.rounded_kv, spec=resolution.model)
    return rounded.kv_format if isinstance(backend.probe(rounded), Accept) else context.kv_format


def _rounds(stored: Iterable[tuple[TensorMeta, str]], kernels: LinearKernels, device: str) -> bool:
    """Say whether kernels of the device will multiply weights by rounded rows."""
    kinds = {(form, meta.dtype) for meta, form in stored if len(meta.shape) > 1}
    return any(kernel.rounds_for(dtype) for form, dtype in kinds for kernel in kernels.candidates(form, device))


class _Grant(NamedTuple):
    """Bytes this worker may use, and those of its GPU that are left to others, with the reason."""

    size: int
    reserve: int = 0
    why: str = "no GPU"


def _grant(settings: WorkerSettings, device: str) -> _Grant:
    """Return what the ledger says of the host, or what a GPU says of itself."""
    if not device.startswith("cuda"):
        return _Grant(settings.memory)
    free, total = torch.cuda.mem_get_info(torch.device(device))
    reserve, why = choose_reserve(settings.config.engine.device_reserve, total, has_display(device))
    return _Grant(max(1, free - reserve), reserve, why)


def _with_forms(checkpoint: Checkpoint, resolution: Resolution) -> Iterator[tuple[TensorMeta, str]]:
    """Yield every tensor with the form it will be packed into; one that no form takes is refused when it is read."""
    for meta in checkpoint.tensors().values():
        form = resolution.quantizer.accepts(meta)
        yield meta, "dense" if isinstance(form, Reject) else form


def _shape(
    settings: WorkerSettings,
    stored: Iterable[tuple[TensorMeta, str]],
    resolution: Resolution,
    spec: ModelSpec,
    layouts: tuple[KVLayout, ...],
    device: str,
    dtype: str,
    kernels: LinearKernels,
) -> EngineShape:
    """Size the engine from estimates."""
    engine = settings.config.engine
    inner = max(layer.mlp.inner for layer in spec.layers)
    on_host = not device.startswith("cuda")
    native = bool(kernels.isa)
    grant = _grant(settings, device)
    budget = MemoryBudget(
        grant=engine.memory or grant.size,
        weights=weight_bytes(stored, dtype, native=native or kernels.triton),
        activations=activation_bytes(
            engine.token_budget or DEFAULT_CHUNK,
            spec.hidden_size,
            inner,
            spec.vocab_size,
            engine.max_sequences or DEFAULT_SEQUENCES,
        ),
        libraries=ONEDNN_BYTES if on_host and not native else 0,
        reserve=grant.reserve,
    )
    shape = derive_shape(
        engine,
        spec,
        layouts,
        budget,
        drafting=resolution.draft.active,
        on_host=on_host,
        cores=usable_cores(),
    )
    shape = replace(shape, device_reserve=grant.reserve, origin={**shape.origin, "device_reserve": grant.why})
    limit = resolution.choices["attention"].spec.capabilities.max_verify
    if limit is not None and shape.max_draft > limit:
        return replace(shape, max_draft=limit, origin={**shape.origin, "max_draft": "attention plugin"})
    return shape
