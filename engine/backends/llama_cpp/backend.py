"""One model and one context of llama.cpp."""

import ctypes
import ctypes.util
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import psutil

from engine.backends.llama_cpp.library_build import library_build
from engine.backends.llama_cpp.log import NativeLog, with_all_rows
from engine.backends.llama_cpp.placement import Placement, PlacementRequest, apply_adapters
from engine.backends.llama_cpp.sequence import LlamaCppSequence, Room
from engine.backends.llama_cpp.state_edit import Ring
from engine.backends.llama_cpp.state_format import State
from engine.backends.llama_cpp.states import States
from engine.backends.llama_cpp.vocabulary import LlamaCppVocabulary, has_vocabulary
from engine.configuration import MAX_DRAFT, FlashAttention, KVTypeName
from engine.errors import ContextFullError, ModelLoadError
from engine.events import BufferSize

GGML_TYPES: dict[KVTypeName, int] = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
FLASH_ATTENTION: dict[FlashAttention, int] = {"auto": -1, "off": 0, "on": 1}
TRIAL_TOKENS = 8


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """What one model and its context are opened with; `n_rows` is `n_outputs_max`.

    Unless `kv_unified`, the `n_sequences` divide the `n_ctx` cells.
    """

    placement: PlacementRequest
    n_ctx: int
    n_batch: int
    n_ubatch: int
    type_k: KVTypeName
    type_v: KVTypeName
    flash_attention: FlashAttention
    n_threads: int | None
    offload_kqv: bool = True
    swa_full: bool = False
    use_extra_buffers: bool = True
    lora_paths: tuple[Path, ...] = ()
    n_rows: int = 1 + MAX_DRAFT
    n_sequences: int = 1
    kv_unified: bool = False
    owner: str = "target"


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

    def clear(self) -> None:
        """Let decodes run."""
        self._flag[0] = b"\x00"


class LlamaCppBackend:
    """A model, its context and the sequences in it.

    Raises:
        ModelLoadError: llama.cpp refused the file or the context.
    """

    def __init__(self, settings: ContextSettings, log: NativeLog) -> None:
        self._log = log
        self._flag = AbortFlag()
        llama_cpp.llama_backend_init()
        log.clear()
        self._model = _load_model(settings, log)
        self._context = _open_context(self._model, settings, log)
        try:
            apply_adapters(self._model, self._context, settings.lora_paths, log)
        except ModelLoadError:
            llama_cpp.llama_free(self._context)
            llama_cpp.llama_model_free(self._model)
            raise
        llama_cpp.llama_set_abort_callback(self._context, self._flag.callback, self._flag.data)
        self.buffers: tuple[BufferSize, ...] = with_all_rows(
            log.buffers(settings.owner), settings.n_rows, settings.n_sequences
        )
        self.kv_bytes = sum(one.nbytes for one in self.buffers if one.kind in ("KV", "RS"))
        self.vocabulary = LlamaCppVocabulary(self._model)
        self.n_ctx: int = llama_cpp.llama_n_ctx_seq(self._context)
        self.n_batch: int = llama_cpp.llama_n_batch(self._context)
        self.n_rows = settings.n_rows
        self.n_ctx_train: int = llama_cpp.llama_model_n_ctx_train(self._model)
        self.n_sequences = settings.n_sequences
        self.shares_cells = settings.kv_unified and settings.n_sequences > 1
        self._room = self._make_room()

    @property
    def can_crop(self) -> bool:
        return not self._room.is_recurrent

    @property
    def can_shift(self) -> bool:
        return self._room.can_shift

    @property
    def can_slice(self) -> bool:
        if not self._room.states.is_learned:
            self._learn_states()
        return self._room.states.sliced is not None

    @property
    def state_format(self) -> str:
        return f"llama.cpp state {llama_cpp.LLAMA_STATE_SEQ_VERSION} {library_build()}"

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
        states = self._room.states
        start = states.first_position(state)
        front, back = states.cut(state, start, start + at), states.cut(state, start + at)
        return bytes(front), bytes(back)

    def open(self) -> LlamaCppSequence:
        """Give an empty sequence; where there is only one, that one is emptied.

        Raises:
            ContextFullError: all are open.
        """
        opened = self._room.open
        free = [number for number in range(self.n_sequences) if number not in opened]
        if free:
            return LlamaCppSequence(self._room, free[0])
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

    def abort(self) -> None:
        self._flag.set()

    def clear_abort(self) -> None:
        self._flag.clear()

    def close(self) -> None:
        if self._context is None:
            return
        for sequence in list(self._room.open.values()):
            sequence.close()
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)
        self._context = self._model = None

    def _make_room(self) -> Room:
        memory = llama_cpp.llama_get_memory(self._context)
        n_swa: int = llama_cpp.llama_model_n_swa(self._model)
        is_recurrent = bool(
            llama_cpp.llama_model_is_recurrent(self._model)
            or llama_cpp.llama_model_is_hybrid(self._model)
        )
        can_shift = not (is_recurrent or n_swa) and bool(llama_cpp.llama_memory_can_shift(memory))
        return Room(
            context=self._context,
            memory=memory,
            states=States(
                self._context, n_swa=n_swa, ring=self._ring(), shares_cells=self.shares_cells
            ),
            n_ctx=self.n_ctx,
            n_batch=self.n_batch,
            n_rows=self.n_rows,
            n_vocab=self.vocabulary.n_tokens,
            n_swa=n_swa,
            is_recurrent=is_recurrent,
            shares_cells=self.shares_cells,
            can_shift=can_shift,
        )

    def _ring(self) -> Ring | None:
        """Give the cells of a sliding window; None where sequences take them from one pool."""
        n_cells = None if self.shares_cells else self._log.window_cells()
        return Ring(n_cells) if n_cells else None

    def _learn_states(self) -> None:
        """Learn what saved states look like from any sequence."""
        opened = list(self._room.open.values())
        if opened:
            max(opened, key=lambda sequence: len(sequence.tokens)).learn_states()
        else:
            self.try_out()

    def _metadata(self, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(512)
        n = llama_cpp.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if n >= 0 else None


def _load_model(settings: ContextSettings, log: NativeLog) -> object:
    path = Path(settings.placement["model_path"])
    placement = Placement(settings.placement)
    placement.params.use_extra_bufts = settings.use_extra_buffers
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), placement.params)
    if model is None:
        raise ModelLoadError(
            f"llama.cpp could not load {path.name}: {log.errors() or 'it gave no reason'}"
        )
    if not has_vocabulary(model):
        llama_cpp.llama_model_free(model)
        raise ModelLoadError(
            f"{path.name} has no vocabulary, so no text can be read or written with it: use a file "
            "that was converted with its tokenizer"
        )
    return model


def _open_context(model: object, settings: ContextSettings, log: NativeLog) -> object:
    n_threads = settings.n_threads or psutil.cpu_count(logical=False) or 1
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = settings.n_ctx
    params.n_batch = settings.n_batch
    params.n_ubatch = settings.n_ubatch
    params.n_seq_max = settings.n_sequences
    params.kv_unified = settings.kv_unified
    params.n_outputs_max = settings.n_rows
    params.n_threads = n_threads
    params.n_threads_batch = n_threads
    params.type_k = GGML_TYPES[settings.type_k]
    params.type_v = GGML_TYPES[settings.type_v]
    params.flash_attn_type = FLASH_ATTENTION[settings.flash_attention]
    params.offload_kqv = settings.offload_kqv
    params.swa_full = settings.swa_full
    context = llama_cpp.llama_init_from_model(model, params)
    if context is None:
        llama_cpp.llama_model_free(model)
        raise ModelLoadError(
            f"llama.cpp refused a context of {settings.n_ctx} tokens with K {settings.type_k}, "
            f"V {settings.type_v}, flash attention {settings.flash_attention}: "
            f"{log.errors() or 'it gave no reason; try a smaller context'}"
        )
    return context
