"""A loaded llama.cpp model, its vocabulary and its adapters, shared by several contexts."""

import ctypes
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import llama_cpp

from engine.backends.base import Vocabulary
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.parameters import ModelParameters
from engine.backends.llama_cpp.projector import Projector
from engine.configuration import Adapter, Configuration
from engine.errors import AdapterError, EngineError, ModelLoadError
from engine.images import Image, starts_image
from engine.model.gguf import read_gguf
from engine.model.identity import not_a_file

KINDS = {0: "none", 1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLAMO2"}
NO_PROJECTOR = (
    "the model is loaded without a projector: put its mmproj file next to the model file, "
    "pass it with --mmproj, or choose a model with a projector"
)
IMAGE_PIECE = b"[image]"
SAMPLED_TOKENS = 1024
PIECE_BYTES = 256


class LoadedModel:
    """The reference-counted weights of a file, or only its vocabulary for another backend.

    Raises:
        ModelLoadError: llama.cpp cannot load the file.
    """

    def __init__(
        self, configuration: Configuration, log: NativeLog, *, vocab_only: bool = False
    ) -> None:
        llama_cpp.llama_backend_init()
        log.clear()
        self.native = _load_model(configuration, log, vocab_only=vocab_only)
        self._n_users = 0

    def take(self) -> object:
        """Increment the reference count; return llama.cpp's handle."""
        self._n_users += 1
        return self.native

    def release(self) -> None:
        """Decrement the reference count; free the weights at zero."""
        self._n_users -= 1
        if self._n_users == 0:
            llama_cpp.llama_model_free(self.native)
            self.native = None


class LlamaCppVocabulary(Vocabulary):
    """The vocabulary of a loaded model; close it before the model is freed."""

    def __init__(self, model: object) -> None:
        self._open_vocab: object = llama_cpp.llama_model_get_vocab(model)
        self.n_tokens: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.kind = KINDS.get(llama_cpp.llama_vocab_type(self._vocab), "unknown")
        self.bos = _token_or_none(llama_cpp.llama_vocab_bos(self._vocab))
        self.eos = _token_or_none(llama_cpp.llama_vocab_eos(self._vocab))
        self.adds_bos = bool(llama_cpp.llama_vocab_get_add_bos(self._vocab))
        self.adds_eos = bool(llama_cpp.llama_vocab_get_add_eos(self._vocab))
        self.projector: Projector | None = None
        """Projector for images; None without one."""
        self.no_images = NO_PROJECTOR
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        self.identifier = self._fingerprint()

    def close(self) -> None:
        """Refuse further calls; a second call does nothing."""
        self._open_vocab = None
        self.no_images = "the model is closed: load it again"

    @property
    def _vocab(self) -> object:
        if self._open_vocab is None:
            raise EngineError("the model is closed: load it again")
        return self._open_vocab

    def is_end(self, token: int) -> bool:
        if token not in self._ends:
            self._ends[token] = bool(llama_cpp.llama_vocab_is_eog(self._vocab, token))
        return self._ends[token]

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode("utf-8", "replace")
        capacity = len(data) + 8
        while True:
            buffer = (llama_cpp.llama_token * capacity)()
            n = llama_cpp.llama_tokenize(
                self._vocab, data, len(data), buffer, capacity, add_special, parse_special
            )
            if n >= 0:
                return list(buffer[:n])
            capacity = -n

    def image_tokens(self, image: Image) -> tuple[int, ...]:
        if self.projector is None or self._open_vocab is None:
            return super().image_tokens(image)
        return self.projector.tokens(image)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token < 0:
            return IMAGE_PIECE if special and starts_image(token) else b""
        key = token if special else ~token
        if key not in self._pieces:
            self._pieces[key] = self._read_piece(token, special=special)
        return self._pieces[key]

    def text(self, token: int) -> bytes:
        return llama_cpp.llama_vocab_get_text(self._vocab, token) or b""

    def _read_piece(self, token: int, *, special: bool) -> bytes:
        """Call llama.cpp with a new buffer, because two threads may call this."""
        nbytes = PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(nbytes)
            n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, nbytes, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            nbytes = -n

    def _fingerprint(self) -> str:
        """Hash the rules and about a thousand entries spread over the vocabulary.

        Stored token ids are also checked against their text, so a collision costs a
        re-tokenisation but never gives wrong text.
        """
        facts = (self.kind, self.n_tokens, self.bos, self.eos, self.adds_bos)
        digest = hashlib.sha256(repr(facts).encode())
        step = max(1, self.n_tokens // SAMPLED_TOKENS)
        for token in range(0, self.n_tokens, step):
            digest.update(self.text(token) + b"\0")
        return digest.hexdigest()[:16]


class Adapters:
    """The loaded adapters of one context, some of them active.

    llama.cpp frees adapters with the model. Active adapters apply to all sequences of the context;
    after a change the next decode rebuilds the graph.
    """

    def __init__(self, model: object, context: object, log: NativeLog) -> None:
        self._model, self._context, self._log = model, context, log
        self._loaded: dict[Path, ctypes._Pointer[ctypes.c_void_p]] = {}
        self.used: tuple[Adapter, ...] = ()

    def use(self, adapters: Sequence[Adapter]) -> None:
        """Set the active adapters.

        Raises:
            AdapterError: a file is missing or not an adapter of this model; nothing changes.
        """
        wanted = tuple(adapters)
        if wanted == self.used:
            return
        handles = (llama_cpp.llama_adapter_lora_p_ctypes * len(wanted))()
        for index, adapter in enumerate(wanted):
            handles[index] = self._load(adapter.path)
        scales = (ctypes.c_float * len(wanted))(*(adapter.scale for adapter in wanted))
        self._log.clear()
        if llama_cpp.llama_set_adapters_lora(self._context, handles, len(wanted), scales):
            raise AdapterError(f"llama.cpp could not apply the adapters: {self._log.errors()}")
        self.used = wanted

    def _load(self, path: Path) -> "ctypes._Pointer[ctypes.c_void_p]":
        if path in self._loaded:
            return self._loaded[path]
        if not path.is_file():
            raise AdapterError(f"the adapter {path} {not_a_file(path)}")
        self._log.clear()
        adapter: ctypes._Pointer[ctypes.c_void_p] = llama_cpp.llama_adapter_lora_init(
            self._model, os.fsencode(path)
        )
        if not adapter:
            raise AdapterError(
                f"{path.name} is not an adapter for this model: "
                f"{self._log.errors() or 'llama.cpp gave no reason'}"
            )
        if not read_gguf(path).tensors:
            raise AdapterError(f"the adapter {path.name} has no tensors and would change nothing")
        self._loaded[path] = adapter
        return adapter


def _load_model(configuration: Configuration, log: NativeLog, *, vocab_only: bool) -> object:
    path = configuration.model_path
    asked = ModelParameters(configuration)
    asked.params.vocab_only = vocab_only
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), asked.params)
    if model is None:
        raise ModelLoadError(
            f"llama.cpp could not load {path.name}: {log.errors() or 'it gave no reason'}"
        )
    if not _has_vocabulary(model):
        llama_cpp.llama_model_free(model)
        raise ModelLoadError(
            f"{path.name} has no vocabulary, so text cannot be tokenised: use a model file "
            "that includes a tokenizer"
        )
    return model


def _has_vocabulary(model: object) -> bool:
    """Whether a model has a tokenizer; without one llama.cpp ends the process."""
    kind: int = llama_cpp.llama_vocab_type(llama_cpp.llama_model_get_vocab(model))
    return KINDS.get(kind) != "none"


def _token_or_none(token: int) -> int | None:
    return token if token >= 0 else None
