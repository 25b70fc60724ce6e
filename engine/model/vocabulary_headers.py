"""Whether two headers may be those of a draft model and its target.

llama.cpp lets a model draft whose vocabulary means the same: `engine/speculation/vocabularies.py`
compares every token once both are loaded. The headers show most misfits sooner.
"""

from engine.errors import IncompatiblePairError
from engine.model.gguf import GgufFile

MAX_SIZE_DIFFERENCE = 128
"""Entries by which two vocabularies may differ (llama.cpp 0c1e57098,
`SPEC_VOCAB_MAX_SIZE_DIFFERENCE`)."""

COMPARED_KEYS = ("model", "pre", "add_bos_token", "bos_token_id")
"""Keys behind `tokenizer.ggml.` that must agree where both headers have them."""


def check_headers(target: GgufFile, draft: GgufFile) -> None:
    """Refuse a draft whose header shows that its tokens mean something else.

    Raises:
        IncompatiblePairError: with the first difference.
    """
    reason = header_difference(target, draft)
    if reason is not None:
        raise IncompatiblePairError(
            f"{draft.path.name} cannot draft for {target.path.name}: {reason}; choose a smaller "
            "model of the same family, or look-up instead"
        )


def header_difference(target: GgufFile, draft: GgufFile) -> str | None:
    """Give the first difference of two vocabularies that the headers show, None where none is."""
    for name in COMPARED_KEYS:
        key = f"tokenizer.ggml.{name}"
        ours, theirs = target.values.get(key), draft.values.get(key)
        if ours is not None and theirs is not None and ours != theirs:
            return f"{key} is {ours} in the target and {theirs} in the draft"
    n_target, n_draft = target.n_vocab or 0, draft.n_vocab or 0
    if not have_like_sizes(n_target, n_draft):
        return (
            f"the target has {n_target:,} tokens and the draft {n_draft:,}, more than "
            f"{MAX_SIZE_DIFFERENCE} apart"
        )
    return None


def have_like_sizes(n_target: int, n_draft: int) -> bool:
    """Whether two vocabularies differ by padding at most."""
    return abs(n_target - n_draft) <= MAX_SIZE_DIFFERENCE
