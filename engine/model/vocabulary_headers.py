"""Whether two headers may be those of a draft model and its target.

llama.cpp lets a model draft whose vocabulary means the same (0c1e57098,
`common_speculative_are_compatible`): same kind, same BOS and EOS habits, sizes within 128, same
text of every shared entry from the sixth on. All of it stands in the headers, so a pair is judged
before anything is loaded; `engine/speculation/pairs.py` asks llama.cpp itself once both are.
"""

from collections.abc import Iterator
from pathlib import Path

from engine.errors import IncompatiblePairError
from engine.model.gguf import GgufFile
from engine.model.vocabulary_facts import TokenList, VocabularyFacts, vocabulary_facts

MAX_SIZE_DIFFERENCE = 128
"""Entries by which two vocabularies may differ (llama.cpp 0c1e57098,
`SPEC_VOCAB_MAX_SIZE_DIFFERENCE`)."""


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
    """Give the first difference of two vocabularies that the headers show, None where none is."""
    return difference_of(
        (target.path, vocabulary_facts(target)), (draft.path, vocabulary_facts(draft))
    )


def difference_of(
    target: tuple[Path, VocabularyFacts],
    draft: tuple[Path, VocabularyFacts],
    tokens: TokenList | None = None,
) -> str | None:
    """Give the first difference in words; tokens are compared where both files are here.

    Args:
        target: The target's first file and what its header says.
        draft: Those of the draft.
        tokens: The target's tokens if they were read already.

    Raises:
        ModelFileError: a file that was there cannot be read any more.
    """
    ours, theirs = target[1], draft[1]
    for key, of_target, of_draft in _compared(ours, theirs):
        if of_target is not None and of_draft is not None and of_target != of_draft:
            return f"{key} is {of_target} in the target and {of_draft} in the draft"
    if not have_like_sizes(ours.n_tokens, theirs.n_tokens):
        return (
            f"the target has {ours.n_tokens:,} tokens and the draft {theirs.n_tokens:,}, more "
            f"than {MAX_SIZE_DIFFERENCE} apart"
        )
    if not (ours.tokens_end and theirs.tokens_end):
        return None
    other = (tokens or TokenList(*target)).first_other(TokenList(*draft))
    if other is None:
        return None
    return (
        f"token {other.token} is {other.of_target!r} in the target and {other.of_draft!r} in the "
        "draft"
    )


def have_like_sizes(n_target: int, n_draft: int) -> bool:
    """Whether two vocabularies differ by padding at most."""
    return abs(n_target - n_draft) <= MAX_SIZE_DIFFERENCE


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
