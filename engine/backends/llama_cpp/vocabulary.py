"""Text to tokens and back, by llama.cpp."""

import ctypes
import hashlib

import llama_cpp

KINDS = {0: "none", 1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLAMO2"}
SAMPLED_TOKENS = 1024
PIECE_BYTES = 256


def has_vocabulary(model: object) -> bool:
    """Whether a loaded model came with a tokenizer; llama.cpp ends the process without one."""
    kind: int = llama_cpp.llama_vocab_type(llama_cpp.llama_model_get_vocab(model))
    return KINDS.get(kind) != "none"


class LlamaCppVocabulary:
    """The vocabulary of one loaded model; it lives as long as the model.

    `model` is kept so that the pointer of its vocabulary stays valid.
    """

    def __init__(self, model: object) -> None:
        self._vocab = llama_cpp.llama_model_get_vocab(model)
        self._model = model
        self.n_tokens: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.kind = KINDS.get(llama_cpp.llama_vocab_type(self._vocab), "unknown")
        self.bos = _token_or_none(llama_cpp.llama_vocab_bos(self._vocab))
        self.eos = _token_or_none(llama_cpp.llama_vocab_eos(self._vocab))
        self.adds_bos = bool(llama_cpp.llama_vocab_get_add_bos(self._vocab))
        self.adds_eos = bool(llama_cpp.llama_vocab_get_add_eos(self._vocab))
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        self.identifier = self._fingerprint()

    def is_end(self, token: int) -> bool:
        end = self._ends.get(token)
        if end is None:
            end = bool(llama_cpp.llama_vocab_is_eog(self._vocab, token))
            self._ends[token] = end
        return end

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

    def piece(self, token: int, *, special: bool = False) -> bytes:
        key = token if special else ~token
        cached = self._pieces.get(key)
        if cached is None:
            cached = self._read_piece(token, special=special)
            self._pieces[key] = cached
        return cached

    def text(self, token: int) -> bytes:
        """The entry of the vocabulary as the file spells it."""
        return llama_cpp.llama_vocab_get_text(self._vocab, token) or b""

    def _read_piece(self, token: int, *, special: bool) -> bytes:
        """Ask llama.cpp, with a buffer of its own: prompts are read in two threads at once."""
        nbytes = PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(nbytes)
            n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, nbytes, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            nbytes = -n

    def _fingerprint(self) -> str:
        """Hash the rules and about a thousand entries spread over the vocabulary.

        Stored token ids are also checked against the text that they spell, so a collision of two
        vocabularies that differ elsewhere costs a re-tokenisation and no wrong text.
        """
        facts = (self.kind, self.n_tokens, self.bos, self.eos, self.adds_bos)
        digest = hashlib.sha256(repr(facts).encode())
        step = max(1, self.n_tokens // SAMPLED_TOKENS)
        for token in range(0, self.n_tokens, step):
            digest.update(self.text(token) + b"\0")
        return digest.hexdigest()[:16]


def _token_or_none(token: int) -> int | None:
    return token if token >= 0 else None
