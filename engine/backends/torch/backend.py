"""One model in torch and the sequences in it."""

from collections.abc import Sequence
from dataclasses import replace
from threading import Event
from typing import Literal

import torch

from engine.backends.base import (
    Backend,
    Forward,
    Logits,
    Step,
    check_cells,
    check_steps,
    free_number,
)
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.model import LlamaCppVocabulary, LoadedModel
from engine.backends.torch.assembly import assemble
from engine.backends.torch.caches.base import CacheConfig, KVCache, LayerCache, held_bytes
from engine.backends.torch.caches.dense import DenseCache
from engine.backends.torch.caches.kinds import make_caches, make_pool
from engine.backends.torch.caches.recurrent import RecurrentCache
from engine.backends.torch.caches.tracing import CacheTrace, TracingCache
from engine.backends.torch.decode_plan import parse_plan
from engine.backends.torch.device import (
    DTYPES,
    TYPE_NAMES,
    check_fits,
    choose_device,
    choose_dtype,
    fast_products,
    free_bytes,
)
from engine.backends.torch.fixed_steps import FixedSteps
from engine.backends.torch.hyperparameters import Hyperparameters, read_hyperparameters
from engine.backends.torch.model import ForwardPass, Transformer
from engine.backends.torch.sequence import TorchSequence
from engine.backends.torch.state import FORMAT
from engine.backends.torch.weights import TensorReader
from engine.configuration import MAX_DRAFT, Configuration
from engine.errors import AdapterError, DecodeAborted, DecodeError, EngineError, ModelLoadError
from engine.memory.hardware import thread_counts
from engine.memory.torch_caches import cache_kind, cache_span, read_bytes
from engine.memory.units import BufferSize
from engine.model.architecture import Model, read_model

Role = Literal["target", "draft"]
TRIAL_TOKENS = 8
NOT_FIXED = (
    "the decode step cannot be compiled: this works only with an f32, f16 or bf16 cache, a "
    "model that has only attention layers, `swa_full` on, and `kv_trace` and `decode_plan` off"
)


class TorchBackend(Backend):
    """A GGUF model whose layers, keys and values are torch tensors.

    The tokenizer is llama.cpp's, loaded without weights.

    Args:
        configuration: Settings of model and context.
        log: llama.cpp's log of this process.
        role: Whether the model is target or draft.
        like: An open backend of the same file, to share its weights, vocabulary and `abort`.
        n_rows: Maximum rows of logits in a batch; None is what the role needs.

    Raises:
        ModelFileError: the file cannot be read.
        ModelLoadError: torch does not support the model, or it does not fit into memory.
    """

    vocabulary: LlamaCppVocabulary
    no_adapters = (
        "the torch backend does not support adapters: remove lora, or use the llama.cpp backend"
    )

    def __init__(
        self,
        configuration: Configuration,
        log: NativeLog,
        role: Role = "target",
        *,
        like: "TorchBackend | None" = None,
        n_rows: int | None = None,
    ) -> None:
        model = read_model(configuration.model_path)
        shape = read_hyperparameters(model)
        _check_settings(configuration, shape)
        plan = configuration.decode_plan
        self._plan = None if plan is None else parse_plan(plan)
        self._device = choose_device(configuration)
        self._dtype = choose_dtype(configuration, self._device)
        self._compile = configuration.compile
        computed = TYPE_NAMES[self._dtype]
        self._kind, span = cache_kind(configuration, computed), cache_span(configuration, computed)
        self.n_ctx = span.n_ctx
        self.n_threads = thread_counts(configuration.n_threads, configuration.n_threads_batch)
        self.n_sequences = configuration.n_slots
        self.n_batch = configuration.n_batch_of_kvchat
        self.n_rows = n_rows or (configuration.n_rows if role == "target" else 1)
        self.state_format = f"{FORMAT}, torch {torch.__version__}, {computed}, {self._kind}"
        self.state_format += "" if plan is None else f", {self._plan}"
        self.read_bytes = read_bytes(self._kind, shape.attention, span)
        """Bytes of one layer's entries while attention reads them."""
        self._stop: Event = Event() if like is None else like._stop
        self.opened: dict[int, TorchSequence] = {}
        """Open sequences by number."""
        self.fixed: FixedSteps | None = None
        """Decodes a few tokens of one sequence if the caches have fixed shapes."""
        self._trace: CacheTrace | None = None
        self._caches: list[list[LayerCache]] = []
        self._is_dense = False
        self.set_threads(max(self.n_threads))
        self._text: LoadedModel = (
            LoadedModel(configuration, log, vocab_only=True) if like is None else like._text
        )
        self.vocabulary = LlamaCppVocabulary(self._text.take())
        self.vocabulary.no_images = (
            "the torch backend does not support images: use --backend llama.cpp"
        )
        try:
            self._model: Transformer | None = self._load(
                model, shape, configuration, None if like is None else like.model
            )
        except EngineError:
            self._text.release()
            raise
        self.set_threads(self.n_threads[0])
        self.kv_bytes = held_bytes(cache for caches in self._caches for cache in caches)
        self.buffers = (
            BufferSize(str(self._device), "model", self.model.nbytes, role),
            BufferSize(str(self._device), "KV", self.kv_bytes, role),
        )

    @property
    def can_slice(self) -> bool:
        return self._is_dense

    @property
    def model(self) -> Transformer:
        """The model in torch.

        Raises:
            DecodeError: it is closed.
        """
        self.check_open()
        assert self._model is not None
        return self._model

    def check_open(self) -> None:
        """Raise `DecodeError` after `close`."""
        if self._model is None:
            raise DecodeError("the model is closed: load it again")

    def set_threads(self, n_threads: int) -> None:
        if torch.get_num_threads() != n_threads:
            torch.set_num_threads(n_threads)

    def verify_batch(self, steps: Sequence[Step]) -> list[Forward]:
        self.check_open()
        check_steps(steps, n_rows=self.n_rows, n_batch=self.n_batch)
        pairs = [(step, _own(step)) for step in steps]
        for step, sequence in pairs:
            check_cells(step.n_tokens, len(sequence.tokens), self.n_ctx)
        try:
            forwards = [Forward(self._logits(step, sequence)) for step, sequence in pairs]
        except (EngineError, RuntimeError, IndexError) as error:
            for _, sequence in pairs:
                sequence.roll_back()
            if isinstance(error, EngineError):
                raise
            n_tokens = sum(step.n_tokens for step in steps)
            raise DecodeError(
                f"torch could not decode {n_tokens} tokens: {_reason(error)}"
            ) from error
        for step, sequence in pairs:
            sequence.commit((*step.unread, *step.tokens))
        return forwards

    def _logits(self, step: Step, sequence: TorchSequence) -> Logits:
        tokens, n_rows = (*step.unread, *step.tokens), len(step.tokens)
        model, caches, logits = self.model, sequence.caches, None
        with torch.inference_mode(), fast_products(len(tokens)):
            ids = torch.tensor([tokens], device=self._device)
            if self.fixed is not None and not step.unread:
                logits = self.fixed.decode(ids, caches, sequence.number)
            if logits is None:
                forward = ForwardPass(caches, len(tokens), n_rows, self._device, self._plan)
                logits = model.forward(ids, forward)
            rows: Logits = logits[0].float().cpu().numpy()
            return rows

    def open(self) -> TorchSequence:
        self.check_open()
        number = free_number(self.opened, self.n_sequences)
        if number is not None:
            sequence = TorchSequence(self, number, self._caches[number])
            self.opened[number] = sequence
            return sequence
        self.opened[0].crop(0)
        return self.opened[0]

    def warm_up(self) -> None:
        bos = self.vocabulary.bos
        token = 0 if bos is None else bos
        sequence = self.open()

        def decode_first() -> None:
            sequence.crop(0)
            sequence.decode(token)

        sequence.prefill([token] * min(TRIAL_TOKENS, self.n_batch, self.n_ctx))
        decode_first()
        if self.fixed is not None:
            self.notes = self.fixed.begin(self._compile, decode_first)
        sequence.close()

    def abort(self) -> None:
        self._stop.set()

    def clear_abort(self) -> None:
        self._stop.clear()

    def close(self) -> None:
        if self._model is None:
            return
        for sequence in list(self.opened.values()):
            sequence.close()
        if self._trace is not None:
            self._trace.close()
        self._model = self.fixed = None
        self._caches = []
        self.vocabulary.close()
        self._text.release()

    def _load(
        self,
        model: Model,
        shape: Hyperparameters,
        configuration: Configuration,
        loaded: Transformer | None,
    ) -> Transformer:
        """Check that the model fits, then allocate caches and read weights."""
        name, n_free = model.file.path.name, free_bytes(self._device)
        config = CacheConfig(
            n_ctx=self.n_ctx,
            dtype=self._dtype,
            device=self._device,
            keeps_windows=configuration.swa_full,
        )
        try:
            check_fits(model, configuration, self._device, has_weights=loaded is not None)
            self._make_caches(configuration, shape, config)
            has_fixed_steps = self._has_fixed_steps(configuration)
            transformer = loaded or assemble(
                shape,
                TensorReader(model.file, dtype=self._dtype, device=self._device),
                self._check_stop,
            )
        except RuntimeError as error:  # torch's error if memory runs out
            raise ModelLoadError(
                f"{name} with a context of {self.n_ctx} does not fit on {self._device}, which "
                f"had {n_free >> 20} MiB free: {str(error).partition(chr(10))[0]}"
            ) from error
        if has_fixed_steps:
            self.fixed = FixedSteps(transformer, self.n_ctx)
        return transformer

    def _has_fixed_steps(self, configuration: Configuration) -> bool:
        """Whether steps with fixed shapes are possible and useful (compiler or CUDA)."""
        is_fixed = self._is_dense and self._plan is None and configuration.kv_trace is None
        if not is_fixed and self._compile == "on":
            raise ModelLoadError(
                f"{NOT_FIXED}; remove `compile=on`, or the setting that conflicts with it"
            )
        if not is_fixed and self._compile == "auto":
            self.notes = (NOT_FIXED,)
        return is_fixed and (self._compile != "off" or self._device.type == "cuda")

    def _make_caches(
        self, configuration: Configuration, shape: Hyperparameters, config: CacheConfig
    ) -> None:
        """Allocate the caches of each sequence; paged ones share one pool of blocks."""
        attention, recurrent, pool = shape.attention, shape.recurrent, None
        if configuration.kv_trace is not None:
            self._trace = CacheTrace(configuration.kv_trace)
        if self._kind.is_paged and attention:
            pool = make_pool(attention, config, n_sequences=self.n_sequences)
        states = replace(config, dtype=_state_dtype(configuration)) if recurrent else config
        for number in range(self.n_sequences):
            table = None if pool is None else pool.open()
            caches = make_caches(self._kind, attention, config, table)
            self._is_dense = all(isinstance(e, DenseCache) for e in caches) and not recurrent
            self._caches.append(
                [
                    *(self._traced(each, layer, number) for layer, each in enumerate(caches)),
                    *(RecurrentCache(each, states, n_back=MAX_DRAFT) for each in recurrent),
                ]
            )

    def _traced(self, cache: KVCache, layer: int, number: int) -> KVCache:
        if self._trace is None:
            return cache
        return TracingCache(cache, layer, self._trace, sequence=number)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise DecodeAborted("stopped")


def _check_settings(configuration: Configuration, shape: Hyperparameters) -> None:
    """Raise for settings that torch or the model does not support."""
    if configuration.lora_paths:
        raise AdapterError(TorchBackend.no_adapters)
    for option in ("decode_plan", "kv_trace"):
        if getattr(configuration, option) is not None and not shape.attention:
            raise ModelLoadError(
                f"{option} needs attention layers, but this model has none: remove {option}"
            )


def _own(step: Step) -> TorchSequence:
    sequence = step.sequence
    assert isinstance(sequence, TorchSequence)
    return sequence


def _reason(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "the device's memory is full: use a smaller context or batch"
    return str(error).partition("\n")[0]


def _state_dtype(configuration: Configuration) -> torch.dtype:
    """The type of stored recurrent states: float32, or that of `kv_cache`."""
    name = configuration.kv_cache or "f32"
    first, _, second = name.partition("/")
    if first not in DTYPES or second not in ("", first):
        raise ModelLoadError(
            f"this model has recurrent layers, whose states cannot be stored as {name}: use "
            f"one of {', '.join(DTYPES)}"
        )
    return DTYPES[first]
