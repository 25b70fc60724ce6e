"""One model and one context of llama.cpp."""

import ctypes
import ctypes.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import llama_cpp

from engine.backends.base import Forward, Step
from engine.backends.llama_cpp.batch import Batch, LogitsRows
from engine.backends.llama_cpp.build import library_build
from engine.backends.llama_cpp.log import CacheHeads, NativeLog, with_all_rows
from engine.backends.llama_cpp.model import Adapters, LlamaCppVocabulary, LoadedModel
from engine.backends.llama_cpp.parameters import context_parameters
from engine.backends.llama_cpp.projector import Projector
from engine.backends.llama_cpp.requantisation import is_rotation_off
from engine.backends.llama_cpp.sequence import Context, LlamaCppSequence, decode_steps
from engine.backends.llama_cpp.state_edit import Ring
from engine.backends.llama_cpp.state_format import State
from engine.backends.llama_cpp.states import States
from engine.configuration import Adapter, Configuration, KVTypeName
from engine.errors import ContextFullError, ModelLoadError
from engine.events import BufferSize
from engine.images import ImageError
from engine.memory.hardware import thread_counts

Role = Literal["target", "draft"]
TRIAL_TOKENS = 8


class AbortFlag:
    """A flag that native code polls without entering Python.

    llama.cpp calls the abort callback with a pointer before every node of the graph. `strlen` has
    the callback's shape: over an empty string it gives 0 (go on), over one character 1 (stop). A
    Python callback in its place would take the interpreter's lock a thousand times a token.
    """

    def __init__(self) -> None:
        self._flag = ctypes.create_string_buffer(16)
        library = ctypes.CDLL(ctypes.util.find_library("c"))
        self.callback = ctypes.cast(library.strlen, llama_cpp.ggml_abort_callback)
        self.data = ctypes.cast(self._flag, ctypes.c_void_p)

    def set(self) -> None:
        """Ask the running decode to stop."""
        self._flag[0] = b"\x01"

    @property
    def is_set(self) -> bool:
        """Whether a decode would stop."""
        return self._flag[0] != b"\0"

    def clear(self) -> None:
        """Let decodes run."""
        self._flag[0] = b"\x00"


class LlamaCppBackend:
    """A model, its context and the sequences in it.

    A draft computes one row of logits at a time; unless `kv_unified`, the slots divide the cells.

    Args:
        configuration: What to open.
        log: The log of this process.
        role: What the context is for.
        model: Loaded weights to open one more context of; None loads them.
        n_rows: Most rows of logits in a batch; None is what the role needs.

    Raises:
        ModelLoadError: llama.cpp refused the file or the context.
    """

    def __init__(
        self,
        configuration: Configuration,
        log: NativeLog,
        role: Role = "target",
        *,
        model: LoadedModel | None = None,
        n_rows: int | None = None,
    ) -> None:
        self._log = log
        self._flag = AbortFlag()
        self.n_rows = n_rows or (configuration.n_rows if role == "target" else 1)
        self._weights = model or LoadedModel(configuration, log)
        self._model = self._weights.take()
        if model is not None:
            log.clear()
        self._native: object = None
        self.n_threads = thread_counts(configuration.n_threads, configuration.n_threads_batch)
        self.rounds_by_threads = _rounds_by_threads(configuration)
        self.notes: tuple[str, ...] = ()
        threaded = replace(configuration, n_threads=self.n_threads[0])
        try:
            self._native = _open_context(self._model, threaded, self.n_rows, log)
            self._adapters = Adapters(self._model, self._native, log)
            self._usual_adapters = configuration.adapters
            self._adapters.use(self._usual_adapters)
        except ModelLoadError:
            if self._native is not None:
                llama_cpp.llama_free(self._native)
            self._weights.release()
            raise
        llama_cpp.llama_set_abort_callback(self._native, self._flag.callback, self._flag.data)
        self.buffers: tuple[BufferSize, ...] = with_all_rows(
            log.buffers(role), self.n_rows, configuration.n_slots
        )
        self.kv_bytes = sum(one.nbytes for one in self.buffers if one.kind in ("KV", "RS"))
        self.compute_bytes = sum(one.nbytes for one in self.buffers if one.kind == "compute")
        self.vocabulary = LlamaCppVocabulary(self._model)
        self.n_ctx: int = llama_cpp.llama_n_ctx_seq(self._native)
        self.n_batch: int = llama_cpp.llama_n_batch(self._native)
        self.n_ctx_train: int = llama_cpp.llama_model_n_ctx_train(self._model)
        self.n_sequences = configuration.n_slots
        self.shares_cells = configuration.kv_unified and configuration.n_slots > 1
        self._context = self._make_context(log.cache_heads())
        self._projector: Projector | None = None
        if role == "target" and model is None and configuration.mmproj_path is not None:
            self._open_projector(configuration, configuration.mmproj_path)

    @property
    def can_crop(self) -> bool:
        return not self._context.is_recurrent

    @property
    def can_shift(self) -> bool:
        return self._context.can_shift

    @property
    def can_slice(self) -> bool:
        if not self._context.states.is_learned:
            self._learn_states()
        return self._context.states.sliced is not None

    @property
    def state_format(self) -> str:
        how = ", not rotated" if is_rotation_off() else ""
        return f"llama.cpp state {llama_cpp.LLAMA_STATE_SEQ_VERSION} {library_build()}{how}"

    @property
    def blindness(self) -> str:
        return self.vocabulary.blindness

    @property
    def model_name(self) -> str:
        """Name that the file gives the model, or nothing."""
        return self._metadata("general.name") or ""

    @property
    def file_type(self) -> str:
        """Quantisation as llama.cpp names it."""
        number = self._metadata("general.file_type")
        name = llama_cpp.llama_ftype_name(int(number)) if number else None
        if name is None:
            return "unknown"
        base, _, size = name.decode().partition(" - ")
        return f"{base}_{size[0]}" if size else base

    @property
    def chat_template(self) -> str | None:
        """The Jinja text of the file's default chat template."""
        text = llama_cpp.llama_model_chat_template(self._model, None)
        return text.decode("utf-8", "replace") if text else None

    def split_state(self, state: State, at: int) -> tuple[bytes, bytes]:
        states = self._context.states
        start = states.first_position(state)
        front, back = states.cut(state, start, start + at), states.cut(state, start + at)
        return bytes(front), bytes(back)

    def requantise(self, state: State, type_k: KVTypeName, type_v: KVTypeName) -> State:
        if not self._context.states.is_learned:
            self._learn_states()
        return self._context.states.requantise(state, type_k, type_v)

    def open(self) -> LlamaCppSequence:
        """An empty sequence; where there is only one, that one is emptied.

        Raises:
            ContextFullError: all are open.
        """
        opened = self._context.open
        free = [number for number in range(self.n_sequences) if number not in opened]
        if free:
            return LlamaCppSequence(self._context, free[0])
        if self.n_sequences > 1:
            raise ContextFullError(
                f"all {self.n_sequences} sequences of the context are open: close one, or load the "
                "model with more slots"
            )
        opened[0].crop(0)
        return opened[0]

    def try_out(self) -> None:
        """Decode a few tokens, and learn from them what saved states look like.

        A badly built llama.cpp crashes at its first decode.
        """
        bos = self.vocabulary.bos
        token = 0 if bos is None else bos
        sequence = self.open()
        sequence.prefill([token] * min(TRIAL_TOKENS, self.n_batch))
        sequence.learn_states()
        sequence.crop(0)
        sequence.decode(token)
        sequence.close()

    def set_threads(self, n_threads: int) -> None:
        llama_cpp.llama_set_n_threads(self._native, n_threads, n_threads)

    def verify_batch(self, steps: Sequence[Step]) -> list[Forward]:
        return decode_steps(self._context, steps)

    def use_adapters(self, adapters: Sequence[Adapter] | None) -> None:
        self._adapters.use(self._usual_adapters if adapters is None else adapters)

    def abort(self) -> None:
        self._flag.set()

    def clear_abort(self) -> None:
        self._flag.clear()

    def close(self) -> None:
        if self._native is None:
            return
        for sequence in list(self._context.open.values()):
            sequence.close()
        if self._projector is not None:
            self._projector.close()
        llama_cpp.llama_free(self._native)
        self._weights.release()
        self._native = self._model = None

    def _make_context(self, heads: tuple[CacheHeads, ...]) -> Context:
        memory = llama_cpp.llama_get_memory(self._native)
        n_swa: int = llama_cpp.llama_model_n_swa(self._model)
        is_recurrent = bool(
            llama_cpp.llama_model_is_recurrent(self._model)
            or llama_cpp.llama_model_is_hybrid(self._model)
        )
        can_shift = not (is_recurrent or n_swa) and bool(llama_cpp.llama_memory_can_shift(memory))
        return Context(
            native=self._native,
            memory=memory,
            states=States(
                self._native,
                n_swa=n_swa,
                ring=self._ring(),
                shares_cells=self.shares_cells,
                heads=heads,
            ),
            batch=Batch(max(self.n_batch, self.n_rows), self.n_sequences),
            logits=LogitsRows(self._native, self.n_rows, self.vocabulary.n_tokens),
            n_ctx=self.n_ctx,
            n_batch=self.n_batch,
            n_ubatch=llama_cpp.llama_n_ubatch(self._native),
            n_rows=self.n_rows,
            n_swa=n_swa,
            is_recurrent=is_recurrent,
            shares_cells=self.shares_cells,
            can_shift=can_shift,
            is_stopped=lambda: self._flag.is_set,
        )

    def _open_projector(self, configuration: Configuration, path: Path) -> None:
        try:
            projector = Projector(
                path,
                self._model,
                self._log,
                on_gpu=configuration.mmproj_offload,
                n_threads=self.n_threads[1],
                n_ubatch=configuration.n_ubatch,
            )
        except ImageError as error:
            self.vocabulary.blindness = str(error)
            self.notes += (f"no image can be attached: {error}",)
            return
        self._projector = self.vocabulary.projector = projector
        self.vocabulary.blindness = ""
        self._context = replace(self._context, projector=projector)
        self.buffers += projector.buffers

    def _ring(self) -> Ring | None:
        """The cells of a sliding window; None where sequences take them from one pool."""
        n_cells = None if self.shares_cells else self._log.window_cells()
        return Ring(n_cells) if n_cells else None

    def _learn_states(self) -> None:
        """Learn what saved states look like from any sequence."""
        opened = list(self._context.open.values())
        if opened:
            max(opened, key=lambda sequence: len(sequence.tokens)).learn_states()
        else:
            self.try_out()

    def _metadata(self, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(512)
        n = llama_cpp.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if n >= 0 else None


def _rounds_by_threads(configuration: Configuration) -> bool:
    """Whether flash attention may share the cells of a single row among the threads.

    It does from 512 cells on where keys and values have one type, f16 or f32, and then adds up one
    part for each thread (`ggml_compute_forward_flash_attn_ext_f16`, ggml-cpu/ops.cpp of 0c1e57098).
    """
    has_one_type = configuration.type_k == configuration.type_v
    is_float = configuration.type_k in ("f16", "f32")
    return configuration.flash_attention != "off" and has_one_type and is_float


def _open_context(
    model: object, configuration: Configuration, n_rows: int, log: NativeLog
) -> object:
    batched = replace(configuration, n_batch=max(n_rows, configuration.n_batch_of_kvchat))
    params = context_parameters(batched, n_rows)
    params.n_threads = configuration.n_threads
    params.n_threads_batch = configuration.n_threads_batch or configuration.n_threads
    context = llama_cpp.llama_init_from_model(model, params)
    if context is None:
        raise ModelLoadError(
            f"llama.cpp refused a context of {configuration.n_ctx} tokens with K "
            f"{configuration.type_k}, V {configuration.type_v}, flash attention "
            f"{configuration.flash_attention}: "
            f"{log.errors() or 'it gave no reason; try a smaller context'}"
        )
    return context
