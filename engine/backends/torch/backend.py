"""One model in torch and the sequences in it."""

from collections.abc import Sequence
from dataclasses import replace
from threading import Event
from typing import Literal

import torch

from engine.backends.base import Forward, Logits, Step, check_steps
from engine.backends.defaults import BaseBackend, check_cells, free_number
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.model import LlamaCppVocabulary, LoadedModel
from engine.backends.torch.assembly import assemble
from engine.backends.torch.caches.base import CacheRoom, storage_bytes
from engine.backends.torch.caches.dense import DenseCache
from engine.backends.torch.caches.kinds import make_caches, make_pool
from engine.backends.torch.caches.recurrent import RecurrentCache
from engine.backends.torch.caches.tracing import CacheTrace, TracingCache
from engine.backends.torch.decode_plan import DecodePlan
from engine.backends.torch.device import (
    DTYPES,
    TYPE_NAMES,
    check_fits,
    choose_device,
    choose_dtype,
    free_bytes,
    quickest_products,
)
from engine.backends.torch.fixed_steps import FixedSteps
from engine.backends.torch.hyperparameters import (
    AttentionShape,
    Hyperparameters,
    StateSpaceShape,
    read_hyperparameters,
)
from engine.backends.torch.model import LayerCache, NewTokens, Transformer
from engine.backends.torch.sequence import TorchSequence
from engine.backends.torch.state import FORMAT
from engine.backends.torch.weights import Progress, TensorReader
from engine.configuration import MAX_DRAFT, Configuration
from engine.errors import (
    AdapterError,
    DecodeAborted,
    DecodeError,
    EngineError,
    ModelLoadError,
)
from engine.events import BufferSize
from engine.memory.hardware import thread_counts
from engine.memory.torch_caches import cache_kind, cache_span, read_bytes
from engine.model.architecture import Model, read_model

Role = Literal["target", "draft"]
TRIAL_TOKENS = 8


class TorchBackend(BaseBackend):
    """A GGUF model whose layers, keys and values are torch tensors.

    The tokenizer is llama.cpp's, loaded without weights.

    Args:
        configuration: Settings of model and context.
        log: llama.cpp's log of this process.
        role: Whether the model is target or draft.
        progress: Called with the bytes read so far and the total.
        like: An open backend of the same file, to share its weights, vocabulary and `abort`.
        n_rows: Maximum rows of logits in a batch; None is what the role needs.

    Raises:
        ModelFileError: the file cannot be read.
        ModelLoadError: torch does not support the model, or it does not fit into memory.
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
        self._plan = None if plan is None else DecodePlan.parse(plan)
        self._device = choose_device(configuration)
        self._dtype = choose_dtype(configuration, self._device)
        self._compile = configuration.compile
        self.notes: tuple[str, ...] = ()
        self._kind = cache_kind(configuration, TYPE_NAMES[self._dtype])
        span = cache_span(configuration, TYPE_NAMES[self._dtype])
        self.n_ctx = span.n_ctx
        self.n_threads = thread_counts(configuration.n_threads, configuration.n_threads_batch)
        self.n_sequences = configuration.n_slots
        self.n_batch = configuration.n_batch_of_kvchat
        self.n_rows = n_rows or (configuration.n_rows if role == "target" else 1)
        self.n_ctx_train = shape.n_ctx_train
        self.model_name = model.file.text("general.name") or ""
        self.file_type = model.file.file_type
        self.chat_template = model.file.chat_template
        self._stop: Event = Event() if like is None else like._stop
        self.opened: dict[int, TorchSequence] = {}
        """Open sequences by number."""
        self.fixed: FixedSteps | None = None
        """Decodes a few tokens of one sequence if the caches have fixed shapes."""
        self._trace: CacheTrace | None = None
        self._caches: list[list[LayerCache]] = []
        self.can_slice = False
        attention = [each.cache for each in shape.layers if isinstance(each, AttentionShape)]
        self.read_bytes = read_bytes(self._kind, attention, span)
        """Of one layer's entries while attention reads them."""
        self.set_threads(max(self.n_threads))
        self._text: LoadedModel | None = None if like is None else like._text
        if self._text is None:
            self._text = LoadedModel(configuration, log, vocab_only=True)
        self.vocabulary = LlamaCppVocabulary(self._text.take())
        self.vocabulary.blindness = (
            "the torch backend does not support images: use --backend llama.cpp"
        )
        try:
            self._model: Transformer | None = self._load(
                model, shape, configuration, progress, like
            )
        except EngineError:
            self._text.release()
            raise
        self.set_threads(self.n_threads[0])
        self.buffers = (
            BufferSize(str(self._device), "model", self.model.nbytes, role),
            BufferSize(str(self._device), "KV", self.kv_bytes, role),
        )

    no_adapters = (
        "the torch backend does not support adapters: remove lora, or use the llama.cpp backend"
    )

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

    def verify_batch(self, steps: Sequence[Step]) -> list[Forward]:
        check_steps(steps, n_rows=self.n_rows, n_batch=self.n_batch)
        sequences = [_own(step) for step in steps]
        for step, sequence in zip(steps, sequences, strict=True):
            check_cells(step.n_tokens, len(sequence.tokens), self.n_ctx)
        forwards = []
        try:
            for step, sequence in zip(steps, sequences, strict=True):
                forwards.append(Forward(self._logits(step, sequence)))
        except (EngineError, RuntimeError, IndexError) as error:
            for sequence in sequences:
                sequence.roll_back()
            if isinstance(error, EngineError):
                raise
            n_tokens = sum(step.n_tokens for step in steps)
            raise DecodeError(
                f"torch could not decode {n_tokens} tokens: {_reason(error)}"
            ) from error
        for step, sequence in zip(steps, sequences, strict=True):
            sequence.commit((*step.unread, *step.tokens))
        return forwards

    def _logits(self, step: Step, sequence: TorchSequence) -> Logits:
        tokens = (*step.unread, *step.tokens)
        new = NewTokens(sequence.caches, step.n_tokens, len(step.tokens))
        with torch.inference_mode(), quickest_products(len(tokens)):
            at = torch.tensor([tokens], device=self._device)
            logits = None
            if self.fixed is not None:
                logits = self.fixed.take(at, new, sequence.number)
            if logits is None:
                logits = self.model.forward(at, new, self._plan)
            rows: Logits = logits[0].float().cpu().numpy()
            return rows

    def open(self) -> TorchSequence:
        """Open an empty sequence; a backend with a single one empties that.

        Raises:
            ContextFullError: all sequences are open.
        """
        number = free_number(self.opened, self.n_sequences)
        if number is not None:
            sequence = TorchSequence(self, number, self._caches[number])
            self.opened[number] = sequence
            return sequence
        self.opened[0].crop(0)
        return self.opened[0]

    def warm_up(self) -> None:
        """Decode a few tokens, so that the first reply does not wait for one-time setup."""
        bos = self.vocabulary.bos
        token = 0 if bos is None else bos
        sequence = self.open()
        sequence.prefill([token] * min(TRIAL_TOKENS, self.n_batch, self.n_ctx))
        sequence.crop(0)
        sequence.decode(token)
        if self.fixed is not None:
            self.notes = self.fixed.begin(self._compile, lambda: self._again(sequence, token))
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
        if self._model is None or self._text is None:
            return
        for sequence in list(self.opened.values()):
            sequence.close()
        if self._trace is not None:
            self._trace.close()
        self._model = self.fixed = None
        self._caches = []
        self.vocabulary.close()
        self._text.release()
        self._text = None

    @property
    def model(self) -> Transformer:
        """The model in torch.

        Raises:
            EngineError: it is closed.
        """
        if self._model is None:
            raise EngineError("this model is closed: load it again")
        return self._model

    def _load(
        self,
        model: Model,
        shape: Hyperparameters,
        configuration: Configuration,
        progress: Progress | None,
        like: "TorchBackend | None",
    ) -> Transformer:
        """Check that the model fits before anything is allocated."""
        name, n_free = model.file.path.name, free_bytes(self._device)
        loaded = None if like is None else like.model
        room = CacheRoom(
            n_ctx=self.n_ctx,
            dtype=self._dtype,
            device=self._device,
            keeps_windows=configuration.swa_full,
        )
        try:
            check_fits(model, configuration, self._device, has_weights=loaded is not None)
            self._make_caches(configuration, shape, room)
            has_fixed_steps = self._has_fixed_steps(configuration)
            transformer = loaded or assemble(
                shape,
                TensorReader(model.file, dtype=self._dtype, device=self._device, progress=progress),
                self._check_stop,
            )
        except RuntimeError as error:  # torch's error if memory runs out
            raise ModelLoadError(
                f"{name} with a context of {self.n_ctx} does not fit on {self._device}, which "
                f"had {n_free >> 20} MiB free: {str(error).partition(chr(10))[0]}"
            ) from error
        if has_fixed_steps:
            self.fixed = FixedSteps(transformer, self.n_ctx)
        if configuration.kv_trace is not None:
            self._trace_caches(CacheTrace(configuration.kv_trace))
        return transformer

    def _has_fixed_steps(self, configuration: Configuration) -> bool:
        """Whether steps in fixed shapes are useful (compiler or CUDA) and possible."""
        fault = self._unlike_shapes(configuration)
        if fault is not None and self._compile == "on":
            raise ModelLoadError(
                f"{fault}; remove `compile=on`, or the setting that conflicts with it"
            )
        if fault is not None and self._compile == "auto":
            self.notes = (fault,)
        return fault is None and (self._compile != "off" or self._device.type == "cuda")

    def _unlike_shapes(self, configuration: Configuration) -> str | None:
        """Why a decode step cannot be compiled."""
        is_dense = all(isinstance(each, DenseCache) for each in self._caches[0])
        if is_dense and self._plan is None and configuration.kv_trace is None:
            return None
        return (
            "the decode step cannot be compiled: this works only with an f32, f16 or bf16 cache, a "
            "model that has only attention layers, `swa_full` on, and `kv_trace` and "
            "`decode_plan` off"
        )

    def _make_caches(
        self, configuration: Configuration, shape: Hyperparameters, room: CacheRoom
    ) -> None:
        """Empty caches per sequence and layer; paged caches share one pool of blocks."""
        attention = [each.cache for each in shape.layers if isinstance(each, AttentionShape)]
        recurrent = [each.states for each in shape.layers if isinstance(each, StateSpaceShape)]
        pool = None
        if self._kind.is_paged and attention:
            pool = make_pool(attention, room, n_sequences=self.n_sequences)
        states = replace(room, dtype=_state_dtype(configuration)) if recurrent else room
        for _ in range(self.n_sequences):
            table = None if pool is None else pool.open()
            caches = make_caches(self._kind, attention, room, table)
            self.can_slice = all(isinstance(each, DenseCache) for each in caches) and not recurrent
            self._caches.append(
                [*caches, *(RecurrentCache(each, states, n_back=MAX_DRAFT) for each in recurrent)]
            )

    def _trace_caches(self, trace: CacheTrace) -> None:
        """Trace all operations of attention caches from now on."""
        self._trace = trace
        self._caches = [
            [
                each
                if isinstance(each, RecurrentCache)
                else TracingCache(each, layer, trace, sequence=number)
                for layer, each in enumerate(caches)
            ]
            for number, caches in enumerate(self._caches)
        ]

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise DecodeAborted("stopped")


def _check_settings(configuration: Configuration, shape: Hyperparameters) -> None:
    """Raise for settings that torch or the model does not support."""
    if configuration.lora_paths:
        raise AdapterError(TorchBackend.no_adapters)
    attends = any(isinstance(each, AttentionShape) for each in shape.layers)
    for option, value in (
        ("decode_plan", configuration.decode_plan),
        ("kv_trace", configuration.kv_trace),
    ):
        if value is not None and not attends:
            raise ModelLoadError(
                f"{option} needs attention layers, but this model has none: remove {option}"
            )


def _own(step: Step) -> TorchSequence:
    sequence = step.sequence
    assert isinstance(sequence, TorchSequence)
    return sequence


def _reason(error: Exception) -> str:
    """Translate an error of torch: out of memory, or an unknown token."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the device's memory is full: use a smaller context or batch"
    return str(error).partition("\n")[0]


def _state_dtype(configuration: Configuration) -> torch.dtype:
    """The type of recurrent states in the cache: float32, or that of `kv_cache`."""
    name = configuration.kv_cache or "f32"
    first, _, second = name.partition("/")
    if first not in DTYPES or second not in ("", first):
        raise ModelLoadError(
            f"this model has recurrent layers, whose states cannot be stored as {name}: use "
            f"one of {', '.join(DTYPES)}"
        )
    return DTYPES[first]
