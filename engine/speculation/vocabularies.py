"""Whether a draft model's tokens mean what its target's mean."""

from engine.backends.base import Vocabulary
from engine.errors import IncompatiblePairError

MAX_SIZE_DIFFERENCE = 128
"""Entries by which two vocabularies may differ at their ends, as in llama.cpp b11434
(`SPEC_VOCAB_MAX_SIZE_DIFFERENCE`): padding differs within one family of models."""

FIRST_COMPARED = 5
"""llama.cpp skips the first entries, which hold control tokens under changing names."""


def check_pair(target: Vocabulary, draft: Vocabulary) -> None:
    """Refuse a draft whose tokens do not mean the same as the target's.

    The rules of llama.cpp b11434 (`common_speculative_are_compatible`): same kind, same BOS and EOS
    habits and ids, sizes within 128, same text of every shared entry from the sixth on.

    Raises:
        IncompatiblePairError: with the first difference.
    """
    reason = difference(target, draft)
    if reason is not None:
        raise IncompatiblePairError(
            f"the draft model speaks another vocabulary: {reason}; "
            "choose a smaller model of the same family, or look-up instead"
        )


def difference(target: Vocabulary, draft: Vocabulary) -> str | None:
    """Give the first difference between two vocabularies in words, None where they agree."""
    facts = (
        ("kind of tokenizer", target.kind, draft.kind),
        ("adds BOS", target.adds_bos, draft.adds_bos),
        ("adds EOS", target.adds_eos, draft.adds_eos),
        ("BOS token", *((target.bos, draft.bos) if target.adds_bos else (None, None))),
        ("EOS token", *((target.eos, draft.eos) if target.adds_eos else (None, None))),
    )
    for what, of_target, of_draft in facts:
        if of_target != of_draft:
            return f"{what} is {of_target} in the target and {of_draft} in the draft"
    if abs(target.n_tokens - draft.n_tokens) > MAX_SIZE_DIFFERENCE:
        return (
            f"the target has {target.n_tokens} tokens and the draft {draft.n_tokens}, "
            f"more than {MAX_SIZE_DIFFERENCE} apart"
        )
    return _first_other_token(target, draft)


def _first_other_token(target: Vocabulary, draft: Vocabulary) -> str | None:
    for token in range(FIRST_COMPARED, min(target.n_tokens, draft.n_tokens)):
        of_target, of_draft = target.text(token), draft.text(token)
        if of_target != of_draft:
            return (
                f"token {token} is {of_target.decode('utf-8', 'replace')!r} in the target and "
                f"{of_draft.decode('utf-8', 'replace')!r} in the draft"
            )
    return None
