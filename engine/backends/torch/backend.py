"""One model in torch and the sequences in it."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from threading import Event
from typing import Literal

import torch

from engine.backends.base import Forward, Step
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.model import LlamaCppVocabulary, LoadedModel
from engine.backends.torch.assembly import assemble
from engine.backends.torch.caches.base import CacheRoom, storage_bytes
from engine.backends.torch.caches.dense import DenseCache
from engine.backends.torch.caches.kinds import make_caches, make_pool
from engine.backends.torch.caches.paged import BlockPrefixes, BlockTable
from engine.backends.torch.caches.recurrent import RecurrentCache
from engine.backends.torch.caches.tracing import CacheTrace, TracingCache
from engine.backends.torch.decode_plan import DecodePlan
from engine.backends.torch.device import (
    DTYPES,
    TYPE_NAMES,
    MemoryNeed,
    check_fits,
    choose_device,
    choose_dtype,
    free_bytes,
)
from engine.backends.torch.fixed_steps import FixedSteps
from engine.backends.torch.hyperparameters import (
    AttentionShape,
    Hyperparameters,
    StateSpaceShape,
    read_hyperparameters,
)
from engine.backends.torch.model import LayerCache
from engine.backends.torch.sequence import Context, TorchSequence, decode_steps
from engine.backends.torch.state import FORMAT, State, cut
from engine.backends.torch.weights import Progress, Weights
from engine.configuration import MAX_DRAFT, Adapter, Configuration, KVTypeName
from engine.errors import (
    AdapterError,
    ContextFullError,
    DecodeAborted,
    EngineError,
    ModelLoadError,
    PresetError,
    StateError,
)
from engine.events import BufferSize
from engine.memory.hardware import thread_counts
from engine.memory.torch_backend import cache_kind, kept_bytes
from engine.memory.torch_caches import CacheSpan, read_bytes
from engine.model.architecture import Model, read_model

Role = Literal["target", "draft"]
TRIAL_TOKENS = 8
NO_ADAPTERS = "the torch backend applies no adapters: leave out lora, or use the backend llama.cpp"


class TorchBackend:
    """A GGUF model whose layers, keys and values are torch's tensors.

    Text becomes tokens by llama.cpp's own vocabulary, which it loads without weights.

    Args:
        configuration: What to open.
        log: llama.cpp's log of this process.
        role: What the model is for.
        progress: Told how many bytes of the file were read, of how many.
        like: Another open backend of the same file, whose weights, vocabulary and `abort` this one
            shares.
        n_rows: Most rows of logits in a batch; None is what the role needs.

    Raises:
        ModelFileError: the file cannot be read.
        ModelLoadError: torch has no code for the model, or it does not fit into memory.
    """

    def __init__(
        self,
        configuration: Configuration,
        log: NativeLog,
        role: Role = "target",
        *,
        progress: Progress | None = None,
        like: "TorchBackend | None" = None,
        n_rows: int | None = None,
    ) -> None:
        model = read_model(configuration.model_path)
        shape = read_hyperparameters(model)
        _check_settings(configuration, shape)
        plan = configuration.decode_plan
        self._plan = None if plan is None else DecodePlan.named(plan)
        self._device = choose_device(configuration)
        self._dtype = choose_dtype(configuration, self._device)
        self._compile = configuration.compile
        self.notes: tuple[str, ...] = ()
        self._kind = cache_kind(configuration, TYPE_NAMES[self._dtype])
        is_paged = self._kind.type_k == "paged"
        self.shares_cells = is_paged and configuration.kv_unified and configuration.n_slots > 1
        self.n_threads = thread_counts(configuration.n_threads, configuration.n_threads_batch)
        self.n_sequences = configuration.n_slots
        self.n_ctx = configuration.n_ctx // (1 if self.shares_cells else configuration.n_slots)
        self.n_batch = configuration.n_batch_of_kvchat
        self.n_rows = n_rows or (configuration.n_rows if role == "target" else 1)
        self.n_ctx_train = shape.n_ctx_train
        self.model_name = model.file.text("general.name") or ""
        self.file_type = model.file.file_type
        self.chat_template = model.file.chat_template
        self._stop: Event = Event() if like is None else like._stop
        self._caches: list[list[LayerCache]] = []
        self._tables: list[BlockTable | None] = []
        self.can_slice = False
        self.read_bytes = 0
        """Of one layer's entries while attention reads them."""
        self.set_threads(max(self.n_threads))
        self._text: LoadedModel | None = None if like is None else like._text
        if self._text is None:
            self._text = LoadedModel(configuration, log, vocab_only=True)
        self.vocabulary = LlamaCppVocabulary(self._text.take())
        self.vocabulary.blindness = "the torch backend reads none: use --backend llama.cpp"
        try:
            self._context: Context | None = self._load(model, shape, configuration, progress, like)
        except EngineError:
            self._text.release()
            raise
        self.set_threads(self.n_threads[0])
        self.buffers = (
            BufferSize(str(self._device), "model", self._context.model.nbytes, role),
            BufferSize(str(self._device), "KV", self.kv_bytes, role),
        )

    can_crop = True
    can_shift = False
    rounds_by_threads = True
    """Products of matrices may split their sums among threads."""

    @property
    def blindness(self) -> str:
        return self.vocabulary.blindness

    @property
    def kv_bytes(self) -> int:
        return storage_bytes(
            tensor for caches in self._caches for cache in caches for tensor in cache.tensors()
        )

    @property
    def state_format(self) -> str:
        computed = TYPE_NAMES[self._dtype]
        named = f"{FORMAT}, torch {torch.__version__}, {computed}, {self._kind}"
        return named if self._plan is None else f"{named}, {self._plan}"

    def set_threads(self, n_threads: int) -> None:
        if torch.get_num_threads() != n_threads:
            torch.set_num_threads(n_threads)

    def use_adapters(self, adapters: Sequence[Adapter] | None) -> None:
        if adapters:
            raise AdapterError(NO_ADAPTERS)

    def verify_batch(self, steps: Sequence[Step]) -> list[Forward]:
        return decode_steps(self._live(), steps)

    def split_state(self, state: State, at: int) -> tuple[bytes, bytes]:
        return cut(state, at)

    def requantise(self, state: State, type_k: KVTypeName, type_v: KVTypeName) -> State:  # noqa: ARG002  the protocol's
        raise StateError("states of the torch backend are not converted to other cache types")

    def open(self) -> TorchSequence:
        """An empty sequence; where there is only one, that one is emptied.

        Raises:
            ContextFullError: all are open.
        """
        context = self._live()
        free = [number for number in range(self.n_sequences) if number not in context.open]
        if free:
            return TorchSequence(context, free[0], self._caches[free[0]], self._tables[free[0]])
        if self.n_sequences > 1:
            raise ContextFullError(
                f"all {self.n_sequences} sequences of the model are open: close one, or load the "
                "model with more slots"
            )
        context.open[0].crop(0)
        return context.open[0]

    def try_out(self) -> None:
        """Decode a few tokens, so that the first reply waits for nothing that is made once."""
        bos = self.vocabulary.bos
        token = 0 if bos is None else bos
        sequence, fixed = self.open(), self._live().fixed
        sequence.prefill([token] * min(TRIAL_TOKENS, self.n_batch, self.n_ctx))
        sequence.crop(0)
        sequence.decode(token)
        if fixed is not None:
            self.notes = fixed.begin(self._compile, lambda: self._again(sequence, token))
        sequence.close()

    def _again(self, sequence: TorchSequence, token: int) -> None:
        """A first token, whatever the sequence holds."""
        sequence.crop(0)
        sequence.decode(token)

    def abort(self) -> None:
        self._stop.set()

    def clear_abort(self) -> None:
        self._stop.clear()

    def close(self) -> None:
        if self._context is None or self._text is None:
            return
        for sequence in list(self._context.open.values()):
            sequence.close()
        if self._context.trace is not None:
            self._context.trace.close()
        self._context = None
        self._caches, self._tables = [], []
        self._text.release()
        self._text = None

    def _live(self) -> Context:
        if self._context is None:
            raise EngineError("this model is closed: load it again")
        return self._context

    def _load(
        self,
        model: Model,
        shape: Hyperparameters,
        configuration: Configuration,
        progress: Progress | None,
        like: "TorchBackend | None",
    ) -> Context:
        """What does not fit is refused before anything is allocated."""
        name, n_free = model.file.path.name, free_bytes(self._device)
        loaded = None if like is None else like._live().model
        room = CacheRoom(
            n_ctx=self.n_ctx,
            dtype=self._dtype,
            device=self._device,
            keeps_windows=configuration.swa_full,
        )
        attention = [each.cache for each in shape.layers if isinstance(each, AttentionShape)]
        span = CacheSpan(self.n_ctx, TYPE_NAMES[self._dtype])
        self.read_bytes = read_bytes(self._kind, attention, span)
        try:
            self._check_fits(model, configuration, n_free, has_weights=loaded is not None)
            prefixes = self._make_caches(configuration, shape, room)
            has_fixed_steps = self._has_fixed_steps(configuration)
            transformer = loaded or assemble(
                shape,
                Weights(model.file, dtype=self._dtype, device=self._device, progress=progress),
                self._check_stop,
            )
        except RuntimeError as error:  # torch's own, of which memory is what fails here
            raise ModelLoadError(
                f"{name} with a context of {self.n_ctx} does not fit on {self._device}, where "
                f"{n_free >> 20} MiB were free: {str(error).partition(chr(10))[0]}"
            ) from error
        return Context(
            model=transformer,
            fixed=FixedSteps(transformer, self.n_ctx) if has_fixed_steps else None,
            n_ctx=self.n_ctx,
            n_batch=self.n_batch,
            n_rows=self.n_rows,
            plan=self._plan,
            shares_cells=self.shares_cells,
            prefixes=prefixes,
            trace=self._traced(configuration.kv_trace),
        )

    def _check_fits(
        self, model: Model, configuration: Configuration, n_free: int, *, has_weights: bool
    ) -> None:
        """Raise `ModelLoadError` where caches and weights need more than is free."""
        try:
            kept = kept_bytes(model, configuration, TYPE_NAMES[self._dtype])
        except PresetError as error:
            raise ModelLoadError(str(error)) from error
        tensors = () if has_weights else model.file.tensors
        joined = (prod(each.shape) for each in tensors if each.name.startswith("blk."))
        need = MemoryNeed(
            n_weights=sum(prod(each.shape) for each in tensors),
            n_joined=2 * max(joined, default=0),
            dtype=self._dtype,
            kv_bytes=sum(kept),
            n_ctx=self.n_ctx * self.n_sequences,
        )
        check_fits(model.file.path.name, need, n_free, self._device)

    def _has_fixed_steps(self, configuration: Configuration) -> bool:
        """Whether steps in fixed shapes are wanted, by compiler or CUDA, and possible."""
        fault = self._unlike_shapes(configuration)
        if fault is not None and self._compile == "on":
            raise ModelLoadError(f"{fault}; leave out compile, or what is in its way")
        if fault is not None and self._compile == "auto":
            self.notes = (fault,)
        return fault is None and (self._compile != "off" or self._device.type == "cuda")

    def _unlike_shapes(self, configuration: Configuration) -> str | None:
        """Why a decode step cannot be compiled."""
        is_dense = all(isinstance(each, DenseCache) for each in self._caches[0])
        if is_dense and self._plan is None and configuration.kv_trace is None:
            return None
        return (
            "the decode step cannot be compiled: its shapes are fixed over caches of f32, f16, "
            "bf16 and static alone, in layers with attention, without a trace or a decode plan, "
            "sliding windows kept whole (swa_full)"
        )

    def _make_caches(
        self,
        configuration: Configuration,
        shape: Hyperparameters,
        room: CacheRoom,
    ) -> BlockPrefixes | None:
        """Empty caches of the layers of each sequence; a pool of blocks is one for all."""
        attention = [each.cache for each in shape.layers if isinstance(each, AttentionShape)]
        recurrent = [each.states for each in shape.layers if isinstance(each, StateSpaceShape)]
        pool = prefixes = None
        if self._kind.type_k == "paged" and attention:
            pool = make_pool(
                attention, room, n_sequences=self.n_sequences, is_shared=self.shares_cells
            )
            prefixes = BlockPrefixes(pool, n_most=pool.n_blocks)
        states = replace(room, dtype=_state_dtype(configuration)) if recurrent else room
        for _ in range(self.n_sequences):
            table = None if pool is None else pool.open()
            caches = make_caches(self._kind, attention, room, table)
            self.can_slice = all(isinstance(each, DenseCache) for each in caches) and not recurrent
            self._tables.append(table)
            self._caches.append(
                [*caches, *(RecurrentCache(each, states, n_back=MAX_DRAFT) for each in recurrent)]
            )
        return prefixes

    def _traced(self, path: Path | None) -> CacheTrace | None:
        """The trace that the operations of all caches are appended to from now on, if there is one.

        Raises:
            ModelLoadError: the file cannot be written.
        """
        if path is None:
            return None
        trace = CacheTrace(path)
        self._caches = [
            [
                each
                if isinstance(each, RecurrentCache)
                else TracingCache(each, layer, trace, sequence=number)
                for layer, each in enumerate(caches)
            ]
            for number, caches in enumerate(self._caches)
        ]
        return trace

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise DecodeAborted("stopped")


def _check_settings(configuration: Configuration, shape: Hyperparameters) -> None:
    """Raise where something is asked that torch has no code for, or the model no layers."""
    if configuration.lora_paths:
        raise AdapterError(NO_ADAPTERS)
    attends = any(isinstance(each, AttentionShape) for each in shape.layers)
    for option, value in (
        ("a decode plan", configuration.decode_plan),
        ("a trace of caches", configuration.kv_trace),
    ):
        if value is not None and not attends:
            raise ModelLoadError(
                f"{option} is of layers with attention, and this model has none: leave it out"
            )


def _state_dtype(configuration: Configuration) -> torch.dtype:
    """The type in which states of recurrent layers are kept: float32, or what `kv_cache` names."""
    name = configuration.kv_cache or "f32"
    first, _, second = name.partition("/")
    if first not in DTYPES or second not in ("", first):
        raise ModelLoadError(
            f"states of recurrent layers are kept in {', '.join(DTYPES)}, and {name} was asked: "
            "they have no keys and values"
        )
    return DTYPES[first]
