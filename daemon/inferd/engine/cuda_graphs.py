"""Decode and verify steps as CUDA graphs, one a bucket, captured when first needed or in idle times; the rest is eager.

Tokens are chosen on the device as well, and passed on to the next step there: a step ends with one small copy to the
host, the only point where the host waits, and the next step may be started before. A bucket that cannot be captured,
or not within the memory left for graphs, runs eagerly for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch

from inferd.engine.capture import Forward
from inferd.engine.cuda_buckets import Bucket, choose, sequence_counts

if TYPE_CHECKING:
    from inferd.engine.batch import Batch
    from inferd.engine.cuda_staging import PinnedInputs
    from inferd.engine.cuda_tokens import DeviceTokens
    from inferd.engine.shape import EngineShape
    from inferd.engine.workspace import BucketWorkspace
    from inferd.model.decoder import Decoder
    from inferd.plugin.contracts import AttentionBackend
    from inferd.plugin.types import LayerKV, StepInputs
    from inferd_kernels.triton.sampler import RowParams


GRAPH_SHARE = 0.5
"""Of the memory that weights, KV and eager steps leave free: what graphs may take of it."""


class Outputs(NamedTuple):
    """What a step leaves on the device."""

    hidden: torch.Tensor  # [T, hidden]
    logits: torch.Tensor  # [R, vocab] float32; all graphs write them to the same place
    ids: torch.Tensor  # [R] int64; -1 where no logit is finite, or one is NaN or +inf


class Graph(NamedTuple):
    outputs: Outputs
    replay: Callable[[], None]


class GraphMaker(Protocol):
    """Captures device work; the one of tests runs it again at every replay."""

    def capture(self, run: Callable[[], Outputs]) -> Graph:
        """Capture `run`. Raises torch.OutOfMemoryError when there is no room for it."""
        ...

    def num_bytes(self) -> int:
        """Bytes of device memory in use by now, without what is only kept for later."""
        ...


class CudaGraphMaker:
    """Graphs of one memory pool: they run one after another, so they share their intermediate memory.

    All are captured on one stream, as cuBLAS keeps a workspace of 32 MiB for each stream that it saw.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def capture(self, run: Callable[[], Outputs]) -> Graph:
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            run()  # kernels are compiled and libraries set up before anything is captured
        here.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(here), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                outputs = run()
        except RuntimeError as error:
            if isinstance(error.__context__, torch.OutOfMemoryError):
                raise error.__context__ from None  # that the capture failed says less
            raise
        return Graph(outputs, graph.replay)

    def num_bytes(self) -> int:
        torch.cuda.empty_cache()  # as a capture does: what eager steps keep would count as given back by it
        return torch.cuda.memory_reserved(self._device)


Choose = Callable[[torch.Tensor, "RowParams"], tuple[torch.Tensor, torch.Tensor]]
"""From logits [R, vocab] and row values to (ids, peaks)."""


class GraphForward:
    """The forward of a step on a GPU: from a batch to its hidden state, logits and chosen tokens."""

    def __init__(
        self,
        decoder: Decoder,
        backend: AttentionBackend,
        kv: Mapping[int, LayerKV],
        inputs: PinnedInputs,
        tokens: DeviceTokens,
        workspace: BucketWorkspace,
        choice: np.ndarray,
        shape: EngineShape,
        *,
        maker: GraphMaker | None,
        choose_tokens: Choose,
        memory_limit: int = 1 << 62,
    ) -> None:
        """Without a `maker` every step is eager. `memory_limit` bounds the bytes that graphs may add."""
        self._decoder = decoder
        self._backend = backend
        self._kv = kv
        self._inputs = inputs
        self._tokens = tokens
        self._workspace = workspace
        self._choice = choice
        self._sizes = sequence_counts(shape.max_sequences)
        self._max_draft = shape.max_draft
        self._maker = maker
        self._choose_tokens = choose_tokens
        self._room = memory_limit
        self._logits: torch.Tensor | None = None
        """[most rows of a graph, vocab]. Where the host reads logits it does so before it starts another step."""
        self._graphs: dict[Bucket, Graph | None] = {}
        """None = could not be captured."""

    @property
    def num_bytes(self) -> int:
        return self._inputs.num_bytes

    @property
    def captured(self) -> tuple[Bucket, ...]:
        return tuple(bucket for bucket, graph in self._graphs.items() if graph is not None)

    def __call__(self, batch: Batch) -> Forward:
        """Start a step."""
        bucket = self._bucket(batch)
        self._inputs.load(batch, self._choice, bucket)
        graph = self._graph(bucket) if bucket else None
        if graph is None:
            outputs = self._run(self._inputs.inputs(batch), None)
        else:
            graph.replay()
            outputs = graph.outputs
        return Forward(outputs.hidden, outputs.logits, self._tokens.to_host(outputs.ids[: len(batch.sample_rows)]))

    def capture_ahead(self) -> Iterator[None]:
        """Capture one bucket after another, smallest first, while there is room; for times without a step in flight."""
        rows = (1, 1 + self._max_draft) if self._max_draft else (1,)
        buckets = [Bucket(size, count) for size in self._sizes for count in rows]
        for bucket in sorted(buckets, key=lambda bucket: bucket.tokens):
            if self._maker is None or self._room <= 0:
                return
            if bucket.tokens <= self._inputs.max_tokens and bucket not in self._graphs:
                self._inputs.clear(bucket)
                self._graph(bucket)
                yield

    def _bucket(self, batch: Batch) -> Bucket | None:
        if self._maker is None or batch.counts.prefill:
            return None
        lens = np.diff(batch.cu_seqlens).tolist()
        limit = self._inputs.max_tokens
        return choose(batch.counts, lens, self._sizes, max_draft=self._max_draft, token_limit=limit)

    def _graph(self, bucket: Bucket) -> Graph | None:
        """Return the graph of a bucket, captured at its first use; a step of this bucket must be loaded."""
        if bucket not in self._graphs:
            self._graphs[bucket] = self._capture(bucket) if self._room > 0 else None
        return self._graphs[bucket]

    def _capture(self, bucket: Bucket) -> Graph | None:
        maker, inputs = self._maker, self._inputs.bucket_inputs(bucket)
        assert maker is not None
        before = maker.num_bytes()
        self._workspace.enter(bucket.sequences * (1 + self._max_draft) + bucket.rows)
        try:
            logits = self._graph_logits()[: bucket.tokens]
            graph = maker.capture(lambda: self._run(inputs, logits))
            self._workspace.seal()
        except torch.OutOfMemoryError:
            graph, self._room = None, 0
        finally:
            self._workspace.enter(0)
        self._room -= maker.num_bytes() - before
        return graph

    def _graph_logits(self) -> torch.Tensor:
        if self._logits is None:
            size = self._inputs.max_rows, self._decoder.spec.vocab_size
            self._logits = torch.empty(size, dtype=torch.float32, device=self._workspace.device)
        return self._logits

    @torch.inference_mode()
    def _run(self, inputs: StepInputs, logits: torch.Tensor | None) -> Outputs:
        """Run a step; its logits go to `logits` where that is given."""
        self._tokens.fill_in(inputs.token_ids)
        plan = self._backend.plan(inputs, self._workspace)
        hidden = self._decoder.forward(inputs, None, self._kv, self._backend, plan)
        logits = self._decoder.logits(hidden.index_select(0, inputs.sample_rows), logits)
        rows = len(inputs.sample_rows)
        ids, peaks = self._choose_tokens(logits, self._inputs.row_params(rows))
        ids.masked_fill_(~peaks.isfinite(), -1)
        self._tokens.keep(ids, self._inputs.row_slots(rows))
        return Outputs(hidden, logits, ids)


def graph_forward(
    decoder: Decoder,
    backend: AttentionBackend,
    kv: Mapping[int, LayerKV],
    workspace: BucketWorkspace,
    choice: np.ndarray,
    shape: EngineShape,
    num_groups: int,
    *,
    device: str,
    graphs: bool,
    eager_bytes: int = 0,
) -> GraphForward:
    """Return the forward of a GPU, tokens chosen by the sampler kernel. `eager_bytes` are left to eager steps."""
    from inferd.engine.cuda_staging import PinnedInputs
    from inferd.engine.cuda_tokens import DeviceTokens
    from inferd_kernels.triton.sampler import sample

    inputs = PinnedInputs(shape, num_groups, device)
    return GraphForward(
        decoder,
        backend,
        kv,
        inputs,
        DeviceTokens(shape.max_sequences, inputs.max_rows, shape.depth, device),
        workspace,
        choice,
        shape,
        maker=CudaGraphMaker(device) if graphs else None,
        choose_tokens=sample,
        memory_limit=int((torch.cuda.mem_get_info(device)[0] - eager_bytes) * GRAPH_SHARE) if graphs else 0,
    )
