"""Whether two headers may be those of a draft model and its target.

llama.cpp lets a model draft whose vocabulary means the same (0c1e57098,
`common_speculative_are_compatible`): same kind, same BOS and EOS habits, sizes within 128, same
text of every shared entry from the sixth on. All of it stands in the headers, so a pair is judged
before anything is loaded; `engine/speculation/pairs.py` asks llama.cpp itself once both are.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.errors import IncompatiblePairError, ModelFileError
from engine.files import open_file
from engine.model.gguf import GgufFile
from engine.model.gguf_header import MAX_HEADER_BYTES

TOKENS = "tokenizer.ggml.tokens"
FIRST_COMPARED = 5
"""llama.cpp skips the first entries, which hold control tokens under changing names
(`SPEC_VOCAB_CHECK_START_TOKEN_ID`, 0c1e57098)."""
LENGTH = struct.Struct("<Q")
MAX_SIZE_DIFFERENCE = 128
"""Entries by which two vocabularies may differ (llama.cpp 0c1e57098,
`SPEC_VOCAB_MAX_SIZE_DIFFERENCE`)."""


@dataclass(frozen=True, slots=True)
class VocabularyFacts:
    """What must agree between a draft model and its target; None where the header says nothing."""

    n_tokens: int
    kind: str | None = None
    """`tokenizer.ggml.model`, such as `gpt2`."""
    splitter: str | None = None
    """`tokenizer.ggml.pre`: how text is cut before it is looked up."""
    adds_bos: bool | None = None
    bos: int | None = None
    adds_eos: bool | None = None
    eos: int | None = None
    tokens_start: int = 0
    """First byte of the tokens in the first file; 0 where there is no file."""
    tokens_end: int = 0


def vocabulary_facts(file: GgufFile) -> VocabularyFacts:
    """The facts of a header; without the tokens where it is not on this machine."""
    start, end = file.string_spans.get(TOKENS, (0, 0)) if file.origin is None else (0, 0)
    return VocabularyFacts(
        n_tokens=file.n_vocab or 0,
        kind=file.text("tokenizer.ggml.model"),
        splitter=file.text("tokenizer.ggml.pre"),
        adds_bos=_flag(file, "tokenizer.ggml.add_bos_token"),
        bos=file.integer("tokenizer.ggml.bos_token_id"),
        adds_eos=_flag(file, "tokenizer.ggml.add_eos_token"),
        eos=file.integer("tokenizer.ggml.eos_token_id"),
        tokens_start=start,
        tokens_end=end,
    )


@dataclass(frozen=True, slots=True)
class OtherToken:
    """The first entry at which two vocabularies part."""

    token: int
    of_target: str
    of_draft: str


class TokenList:
    """The tokens of one file as bytes, each behind its length, from `FIRST_COMPARED` on.

    Raises:
        ModelFileError: the file cannot be read any more.
    """

    def __init__(self, path: Path, facts: VocabularyFacts) -> None:
        try:
            with open_file(path) as file:
                file.seek(facts.tokens_start)
                self._data = file.read(
                    min(max(0, facts.tokens_end - facts.tokens_start), MAX_HEADER_BYTES)
                )
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
        self._name = path.name
        self._start = 0
        for _ in range(min(FIRST_COMPARED, facts.n_tokens)):
            self._start = self._behind(self._start)

    def first_other(self, draft: "TokenList") -> OtherToken | None:
        """The first entry that differs; further ones at the end of the longer are padding."""
        ours, theirs = self._data[self._start :], draft._data[draft._start :]
        n_same = _n_same(ours, theirs)
        if n_same == min(len(ours), len(theirs)):
            return None
        at, other, token = self._start, draft._start, FIRST_COMPARED
        while self._behind(at) - self._start <= n_same:
            token += 1
            step = self._behind(at) - at
            at, other = at + step, other + step
        return OtherToken(token, self._text(at), draft._text(other))

    def _behind(self, at: int) -> int:
        start = at + LENGTH.size
        if start <= len(self._data):
            length: int = LENGTH.unpack_from(self._data, at)[0]
            if start + length <= len(self._data):
                return start + length
        raise ModelFileError(
            f"the vocabulary of {self._name} is not at the place its header names: the file "
            "has changed, try again"
        )

    def _text(self, at: int) -> str:
        return self._data[at + LENGTH.size : self._behind(at)].decode("utf-8", "replace")


def check_headers(target: GgufFile, draft: GgufFile) -> None:
    """Refuse a draft whose header shows that its tokens mean something else.

    Raises:
        IncompatiblePairError: with the first difference.
        ModelFileError: a file that was there cannot be read any more.
    """
    reason = header_difference(target, draft)
    if reason is not None:
        raise IncompatiblePairError(
            f"{draft.path.name} cannot draft for {target.path.name}: {reason}; choose a smaller "
            "model of the same family, or look-up instead"
        )


def header_difference(target: GgufFile, draft: GgufFile) -> str | None:
    """The first difference of two vocabularies that the headers show; None where there is none."""
    return difference_of(
        (target.path, vocabulary_facts(target)), (draft.path, vocabulary_facts(draft))
    )


def difference_of(
    target: tuple[Path, VocabularyFacts],
    draft: tuple[Path, VocabularyFacts],
    tokens: TokenList | None = None,
) -> str | None:
    """The first difference in words; tokens are compared where both files are here.

    Args:
        target: The target's first file and what its header says.
        draft: Those of the draft.
        tokens: The target's tokens if they were read already.

    Raises:
        ModelFileError: a file that was there cannot be read any more.
    """
    reason = facts_difference(target[1], draft[1])
    if reason is not None or not (target[1].tokens_end and draft[1].tokens_end):
        return reason
    other = (tokens or TokenList(*target)).first_other(TokenList(*draft))
    if other is None:
        return None
    return (
        f"token {other.token} is {other.of_target!r} in the target and {other.of_draft!r} in the "
        "draft"
    )


def facts_difference(ours: VocabularyFacts, theirs: VocabularyFacts) -> str | None:
    """The first difference of a target's facts from a draft's in words; tokens are not compared."""
    for key, of_target, of_draft in _compared(ours, theirs):
        if of_target is not None and of_draft is not None and of_target != of_draft:
            return f"{key} is {of_target} in the target and {of_draft} in the draft"
    if have_like_sizes(ours.n_tokens, theirs.n_tokens):
        return None
    return (
        f"the target has {ours.n_tokens:,} tokens and the draft {theirs.n_tokens:,}, more "
        f"than {MAX_SIZE_DIFFERENCE} apart"
    )


def have_like_sizes(n_target: int, n_draft: int) -> bool:
    """Whether two vocabularies differ by padding at most."""
    return abs(n_target - n_draft) <= MAX_SIZE_DIFFERENCE


def _n_same(ours: bytes, theirs: bytes) -> int:
    """How many bytes agree from the start on, found by halves."""
    low, high = 0, min(len(ours), len(theirs))
    if ours[:high] == theirs[:high]:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        if ours[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _flag(file: GgufFile, key: str) -> bool | None:
    value = file.values.get(key)
    return value if isinstance(value, bool) else None


def _compared(
    ours: VocabularyFacts, theirs: VocabularyFacts
) -> Iterator[tuple[str, object, object]]:
    yield "tokenizer.ggml.model", ours.kind, theirs.kind
    yield "tokenizer.ggml.add_bos_token", ours.adds_bos, theirs.adds_bos
    if ours.adds_bos is not False:
        yield "tokenizer.ggml.bos_token_id", ours.bos, theirs.bos
    yield "tokenizer.ggml.add_eos_token", ours.adds_eos, theirs.adds_eos
    if ours.adds_eos:
        yield "tokenizer.ggml.eos_token_id", ours.eos, theirs.eos
    if not (ours.tokens_end and theirs.tokens_end):
        # A sign of another vocabulary only: models of one token list may cut text differently.
        yield "tokenizer.ggml.pre", ours.splitter, theirs.splitter
