"""Checks that a draft model fits its target: equal vocabularies."""

from engine.backends.base import Vocabulary
from engine.errors import IncompatiblePairError
from engine.model.vocabulary import FIRST_COMPARED, VocabularyFacts, facts_difference


def check_pair(target: Vocabulary, draft: Vocabulary) -> None:
    """Refuse a draft model whose tokens differ from the target's (`engine.model.vocabulary`).

    Raises:
        IncompatiblePairError: the vocabularies differ; the message gives the first difference.
    """
    own, other = (
        VocabularyFacts(
            n_tokens=each.n_tokens, kind=each.kind,
            adds_bos=each.adds_bos, bos=each.bos, adds_eos=each.adds_eos, eos=each.eos,
        )
        for each in (target, draft)
    )  # fmt: skip
    if reason := facts_difference(own, other) or _first_other_token(target, draft):
        raise IncompatiblePairError(
            f"the draft model has a different vocabulary: {reason}; choose a smaller model "
            "of the same family, or use n-gram lookup"
        )


def _first_other_token(target: Vocabulary, draft: Vocabulary) -> str | None:
    for token in range(FIRST_COMPARED, min(target.n_tokens, draft.n_tokens)):
        of_target, of_draft = target.text(token), draft.text(token)
        if of_target != of_draft:
            return (
                f"token {token} is {of_target.decode('utf-8', 'replace')!r} in the target and "
                f"{of_draft.decode('utf-8', 'replace')!r} in the draft"
            )
    return None
