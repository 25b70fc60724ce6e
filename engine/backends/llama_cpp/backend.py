"""One model and one context of llama.cpp."""

import ctypes
import ctypes.util
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import llama_cpp

from engine.backends.base import Backend, Forward, Step, check_cells, check_steps, free_number
from engine.backends.llama_cpp.batch import LogitsRows, TokenBatch
from engine.backends.llama_cpp.log import NativeLog, with_all_rows
from engine.backends.llama_cpp.model import Adapters, LlamaCppVocabulary, LoadedModel
from engine.backends.llama_cpp.parameters import open_context
from engine.backends.llama_cpp.projector import Projector
from engine.backends.llama_cpp.sequence import LlamaCppSequence
from engine.backends.llama_cpp.states import States
from engine.builds import installed_build
from engine.configuration import Adapter, Configuration
from engine.errors import ContextFullError, DecodeAborted, DecodeError, EngineError
from engine.images import ImageError, end_of_images
from engine.memory.hardware import thread_counts

Role = Literal["target", "draft"]
TRIAL_TOKENS = 8
DECODED, NO_CELLS, ABORTED = 0, 1, 2
ROTATION_OFF = "LLAMA_ATTN_ROT_DISABLE"
"""Environment variable of llama.cpp that turns off the Hadamard rotation of quantised K and V."""


class AbortFlag:
    """A flag that native code polls without entering Python.

    llama.cpp calls the abort callback with a pointer before every node of the graph. `strlen` has
    the callback's signature: for an empty string it returns 0 (continue), for one character 1
    (stop). A Python callback would acquire the interpreter's lock a thousand times per token.
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
        """Allow decodes again."""
        self._flag[0] = b"\x00"


class LlamaCppBackend(Backend):
    """A model, its context and the sequences in it.

    A draft model computes one row of logits at a time; the slots divide the cells.

    Args:
        configuration: Settings of model and context.
        log: The log of this process.
        role: Whether the model is target or draft.
        model: Loaded weights for a further context; None loads them.
        n_rows: Maximum rows of logits in a batch; None is what the role needs.

    Raises:
        ModelLoadError: llama.cpp cannot load the file or create the context.
    """

    vocabulary: LlamaCppVocabulary

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
        self.native: object = None
        """llama.cpp's handle of the context."""
        self.n_threads = thread_counts(configuration.n_threads, configuration.n_threads_batch)
        threaded = replace(configuration, n_threads=self.n_threads[0])
        try:
            self.native = open_context(self._model, threaded, self.n_rows, log)
            self._adapters = Adapters(self._model, self.native, log)
            self._own_adapters = configuration.adapters
            self._adapters.use(self._own_adapters)
        except EngineError:
            if self.native is not None:
                llama_cpp.llama_free(self.native)
            self._weights.release()
            raise
        llama_cpp.llama_set_abort_callback(self.native, self._flag.callback, self._flag.data)
        self.buffers = with_all_rows(log.buffers(role), self.n_rows, configuration.n_slots)
        self.kv_bytes = sum(one.nbytes for one in self.buffers if one.kind in ("KV", "RS"))
        self.compute_bytes = sum(one.nbytes for one in self.buffers if one.kind == "compute")
        self.vocabulary = LlamaCppVocabulary(self._model)
        self.n_ctx: int = llama_cpp.llama_n_ctx_seq(self.native)
        self.n_batch: int = llama_cpp.llama_n_batch(self.native)
        self.n_sequences = configuration.n_slots
        self.n_ubatch: int = llama_cpp.llama_n_ubatch(self.native)
        self.n_swa: int = llama_cpp.llama_model_n_swa(self._model)
        self.memory = llama_cpp.llama_get_memory(self.native)
        self.is_recurrent = bool(
            llama_cpp.llama_model_is_recurrent(self._model)
            or llama_cpp.llama_model_is_hybrid(self._model)
        )
        self.can_crop = not self.is_recurrent
        is_rotated = os.environ.get(ROTATION_OFF, "0").strip() in ("", "0")
        self.state_format = (
            f"llama.cpp state {llama_cpp.LLAMA_STATE_SEQ_VERSION} {installed_build()}"
            f"{'' if is_rotated else ', not rotated'}"
        )
        self.states = States(self.native, n_swa=self.n_swa)
        self.batch = TokenBatch(max(self.n_batch, self.n_rows), self.n_sequences)
        self._rows = LogitsRows(self.native, self.n_rows, self.vocabulary.n_tokens)
        self.opened: dict[int, LlamaCppSequence] = {}
        """Open sequences by id."""
        self.projector: Projector | None = None
        if role == "target" and model is None and configuration.mmproj_path is not None:
            self._open_projector(configuration, configuration.mmproj_path)

    @property
    def can_slice(self) -> bool:
        if not self.states.is_learned:
            self._learn_states()
        if self.projector is not None and self.projector.has_rows:
            return False  # with M-RoPE positions are not token indices
        return self.states.slice_layout is not None

    @property
    def chat_template(self) -> str | None:
        """Jinja text of the model's chat template, for sessions of one's own; None without one."""
        self.check_open()
        text = llama_cpp.llama_model_chat_template(self._model, None)
        return text.decode("utf-8", "replace") if text else None

    def open(self) -> LlamaCppSequence:
        self.check_open()
        number = free_number(self.opened, self.n_sequences)
        if number is not None:
            sequence = self.opened[number] = LlamaCppSequence(self, number)
            return sequence
        self.opened[0].crop(0)
        return self.opened[0]

    def warm_up(self) -> None:
        """Decode a few tokens (a badly built llama.cpp crashes here); learn the state layout."""
        bos = self.vocabulary.bos
        token = 0 if bos is None else bos
        sequence = self.open()
        sequence.prefill([token] * min(TRIAL_TOKENS, self.n_batch))
        sequence.learn_states()
        sequence.crop(0)
        sequence.decode(token)
        sequence.close()

    def check_open(self) -> None:
        """Raise `DecodeError` after `close`: native code must not be handed freed memory."""
        if self.native is None:
            raise DecodeError("the model is closed: load it again")

    def set_threads(self, n_threads: int) -> None:
        self.check_open()
        llama_cpp.llama_set_n_threads(self.native, n_threads, n_threads)

    def verify_batch(self, steps: Sequence[Step]) -> list[Forward]:
        self.check_open()
        n_rows = self._check(steps)
        if self.projector is not None:
            steps = [self._after_images(step) for step in steps]
        pairs = [(step, self._own(step)) for step in steps]
        in_order = sorted(pairs, key=lambda pair: pair[1].id)
        self.batch.clear()
        for step, sequence in in_order:
            sequence.fill_batch(step, self.batch)
        native = self.batch.native
        status = llama_cpp.llama_decode(self.native, native) if native.n_tokens else DECODED
        rows = self._rows.read() if n_rows and status == DECODED else self._rows.none
        for step, sequence in pairs:
            sequence.commit_step(step, is_decoded=status == DECODED)
        if status != DECODED:
            raise self._failure(status, pairs)
        forwards, start = {}, 0
        for step, sequence in in_order:
            forwards[sequence.id] = Forward(rows[start : start + len(step.tokens)])
            start += len(step.tokens)
        return [forwards[sequence.id] for _, sequence in pairs]

    def _check(self, steps: Sequence[Step]) -> int:
        """Return the rows of logits of steps; tokens up to an image have batches of their own."""
        last = [replace(step, unread=step.unread[end_of_images(step.unread) :]) for step in steps]
        n_rows = check_steps(last, n_rows=self.n_rows, n_batch=self.n_batch)
        for step in steps:
            check_cells(step.n_tokens, len(step.sequence.tokens), self.n_ctx)
        return n_rows

    def use_adapters(self, adapters: Sequence[Adapter] | None) -> None:
        self.check_open()
        self._adapters.use(self._own_adapters if adapters is None else adapters)

    def abort(self) -> None:
        self._flag.set()

    def clear_abort(self) -> None:
        self._flag.clear()

    def close(self) -> None:
        if self.native is None:
            return
        for sequence in list(self.opened.values()):
            sequence.close()
        if self.projector is not None:
            self.projector.close()
        self.vocabulary.close()
        llama_cpp.llama_free(self.native)
        self._weights.release()
        self.native = self._model = self.memory = None

    def _own(self, step: Step) -> LlamaCppSequence:
        sequence = step.sequence
        assert isinstance(sequence, LlamaCppSequence)
        assert self.opened.get(sequence.id) is sequence
        return sequence

    def _after_images(self, step: Step) -> Step:
        """Decode a step up to its last image; return the remaining step."""
        unread = step.unread
        while min(unread, default=0) < 0:
            sequence = self._own(step)
            start = next(place for place, token in enumerate(unread) if token < 0)
            sequence.prefill(unread[:start])
            unread = unread[start + self._decode_image(sequence, unread[start:]) :]
        return replace(step, unread=unread)

    def _decode_image(self, sequence: LlamaCppSequence, tokens: Sequence[int]) -> int:
        """Decode the image segment at the start of `tokens`; return its number of tokens."""

        def check_stopped() -> None:
            if self._flag.is_set:
                raise DecodeAborted(f"decoding stopped after {len(sequence.tokens)} cached tokens")

        assert self.projector is not None
        start = sequence.next_position
        n_tokens, n_positions, status = self.projector.decode(
            self.native, sequence.id, tokens, start, n_batch=self.n_batch, check=check_stopped
        )
        step = Step(sequence, unread=tokens[:n_tokens])
        if status != DECODED:  # remove a partly decoded image
            llama_cpp.llama_memory_seq_rm(self.memory, sequence.id, start, -1)
        sequence.commit_step(step, is_decoded=status == DECODED)
        if status != DECODED:
            raise self._failure(status, [(step, sequence)])
        sequence.commit_image(n_tokens, n_positions)
        return n_tokens

    def _failure(
        self, status: int, pairs: Sequence[tuple[Step, LlamaCppSequence]]
    ) -> DecodeAborted | ContextFullError | DecodeError:
        n_asked = sum(step.n_tokens for step, _ in pairs)
        n_held = sum(len(sequence.tokens) for _, sequence in pairs)
        if status == ABORTED:
            return DecodeAborted(f"decoding stopped after {n_held} cached tokens")
        if status == NO_CELLS:
            return ContextFullError(
                f"llama.cpp found no free cells for {n_asked} more tokens after {n_held} "
                "cached ones: raise n_ctx, or shorten the chat"
            )
        return DecodeError(
            f"llama_decode failed with status {status} for {n_asked} tokens after {n_held} "
            "cached ones: see the log for the reason, and reload the model"
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
            self.vocabulary.no_images = str(error)
            self.notes += (f"images cannot be attached: {error}",)
            return
        self.projector = self.vocabulary.projector = projector
        self.vocabulary.no_images = ""
        self.buffers += projector.buffers

    def _learn_states(self) -> None:
        """Learn the layout of saved states from any sequence."""
        opened = list(self.opened.values())
        if opened:
            max(opened, key=lambda sequence: len(sequence.tokens)).learn_states()
        else:
            self.warm_up()
