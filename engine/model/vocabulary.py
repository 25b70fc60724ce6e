"""Whether the headers of a draft model and its target allow the pair.

llama.cpp accepts a draft whose vocabulary means the same (0c1e57098,
`common_speculative_are_compatible`): same type, same BOS and EOS, sizes within 128, same text of
every shared token from the sixth on. `engine/speculation/pairs.py` asks llama.cpp itself once both
models are loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import IncompatiblePairError, ModelFileError
from engine.files import open_file, reason_of
from engine.model.gguf import MAX_HEADER_BYTES, U64, GgufFile

TOKENS = "tokenizer.ggml.tokens"
FIRST_COMPARED = 5
"""llama.cpp skips the first entries, which have control tokens under changing names
(`SPEC_VOCAB_CHECK_START_TOKEN_ID`, 0c1e57098)."""
MAX_SIZE_DIFFERENCE = 128  # of padding (0c1e57098, `SPEC_VOCAB_MAX_SIZE_DIFFERENCE`)
KEYS = {
    "kind": "tokenizer.ggml.model",
    "adds_bos": "tokenizer.ggml.add_bos_token",
    "bos": "tokenizer.ggml.bos_token_id",
    "adds_eos": "tokenizer.ggml.add_eos_token",
    "eos": "tokenizer.ggml.eos_token_id",
    "splitter": "tokenizer.ggml.pre",
}
"""By the field of `VocabularyFacts`."""


@dataclass(frozen=True, slots=True)
class VocabularyFacts:
    """Facts that must be equal in a draft model and its target; None if the header lacks one."""

    n_tokens: int
    kind: str | None = None  # such as `gpt2`
    splitter: str | None = None  # how text is split before the look-up
    adds_bos: bool | None = None
    bos: int | None = None
    adds_eos: bool | None = None
    eos: int | None = None
    tokens_start: int = 0  # first byte of the tokens in the first file; 0 without a file
    tokens_end: int = 0


def vocabulary_facts(file: GgufFile) -> VocabularyFacts:
    """The facts of a header; without the tokens of a file that is not on this machine."""
    start, end = file.string_spans.get(TOKENS, (0, 0)) if file.origin is None else (0, 0)
    adds_bos, adds_eos = (file.values.get(KEYS[name]) for name in ("adds_bos", "adds_eos"))
    return VocabularyFacts(
        n_tokens=file.n_vocab or 0,
        kind=file.text(KEYS["kind"]),
        splitter=file.text(KEYS["splitter"]),
        adds_bos=adds_bos if isinstance(adds_bos, bool) else None,
        bos=file.integer(KEYS["bos"]),
        adds_eos=adds_eos if isinstance(adds_eos, bool) else None,
        eos=file.integer(KEYS["eos"]),
        tokens_start=start,
        tokens_end=end,
    )


def read_tokens(path: Path, facts: VocabularyFacts) -> list[bytes]:
    """The tokens of a file; raises `ModelFileError` if it changed since its header was read."""
    try:
        with open_file(path) as file:
            file.seek(facts.tokens_start)
            n_bytes = max(0, facts.tokens_end - facts.tokens_start)
            data = file.read(min(n_bytes, MAX_HEADER_BYTES)) or b""
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {reason_of(error)}") from error
    tokens, at = [], 0
    while at + U64.size <= len(data):
        start = at + U64.size
        at = start + U64.unpack_from(data, at)[0]
        tokens.append(data[start:at])
    if at != len(data) or len(tokens) != facts.n_tokens:
        raise ModelFileError(
            f"the vocabulary of {path.name} could not be read again: the file changed; try again"
        )
    return tokens


def check_headers(target: GgufFile, draft: GgufFile) -> None:
    """Refuse a draft whose header shows that its tokens mean something else.

    Raises:
        IncompatiblePairError: with the first difference.
        ModelFileError: a file cannot be read any more.
    """
    reason = difference_of(
        (target.path, vocabulary_facts(target)), (draft.path, vocabulary_facts(draft))
    )
    if reason is not None:
        raise IncompatiblePairError(
            f"{draft.path.name} cannot draft for {target.path.name}: {reason}; choose a "
            "smaller model of the same family, or use lookup instead"
        )


def difference_of(
    target: tuple[Path, VocabularyFacts],
    draft: tuple[Path, VocabularyFacts],
    tokens: Sequence[bytes] | None = None,
) -> str | None:
    """The first difference, of the tokens too if both files are on this machine; None without.

    Each side is a first file and its facts; `tokens` are the target's, if they were read already.
    Raises `ModelFileError` if a file cannot be read any more.
    """
    reason = facts_difference(target[1], draft[1])
    if reason is not None or not (target[1].tokens_end and draft[1].tokens_end):
        return reason
    pairs = zip(tokens or read_tokens(*target), read_tokens(*draft), strict=False)  # padding
    for token, (ours, theirs) in enumerate(pairs):
        if ours != theirs and token >= FIRST_COMPARED:
            of_target, of_draft = (each.decode("utf-8", "replace") for each in (ours, theirs))
            return f"token {token} is {of_target!r} in the target and {of_draft!r} in the draft"
    return None


def facts_difference(ours: VocabularyFacts, theirs: VocabularyFacts) -> str | None:
    """The first difference of a target's facts from a draft's, without the tokens."""
    is_compared = {
        "bos": ours.adds_bos is not False,
        "eos": bool(ours.adds_eos),
        # Only a hint at another vocabulary: models with equal tokens may split text differently.
        "splitter": not (ours.tokens_end and theirs.tokens_end),
    }
    for name, key in KEYS.items():
        of_target, of_draft = getattr(ours, name), getattr(theirs, name)
        is_known = None not in (of_target, of_draft)
        if is_known and of_target != of_draft and is_compared.get(name, True):
            return f"{key} is {of_target} in the target and {of_draft} in the draft"
    if have_similar_sizes(ours.n_tokens, theirs.n_tokens):
        return None
    return (
        f"the vocabularies differ by more than {MAX_SIZE_DIFFERENCE} tokens: the target has "
        f"{ours.n_tokens:,} tokens and the draft {theirs.n_tokens:,}"
    )


def have_similar_sizes(n_target: int, n_draft: int) -> bool:
    """Whether two vocabularies differ by padding at most."""
    return abs(n_target - n_draft) <= MAX_SIZE_DIFFERENCE
