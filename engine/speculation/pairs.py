"""Checks that a draft model fits its target: equal vocabularies, and not a draft head."""

from pathlib import Path

from engine.backends.base import Vocabulary
from engine.errors import IncompatiblePairError
from engine.model.gguf import read_gguf
from engine.model.identity import ModelKind, kind_of
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


SPEC_TYPES = {"eagle3": "draft-eagle3", "dflash": "draft-dflash"}
"""`--spec-type` of llama-server (llama.cpp 0c1e57098) by architecture; otherwise `draft-mtp`."""


def check_is_no_head(path: Path) -> None:
    """Refuse a draft head (EAGLE-3, DFlash, a separate file of an MTP head) as draft model.

    Raises:
        IncompatiblePairError: it is a draft head.
        ModelFileError: the file cannot be read.
    """
    file = read_gguf(path)
    if kind_of(file) is not ModelKind.DRAFT:
        return
    name = file.architecture
    raise IncompatiblePairError(
        f"{path.name} is a draft head ({name}), not a complete model: it needs hidden "
        "states of its target, which kvchat cannot pass to it. Use a small model of the "
        "same vocabulary, or n-gram lookup; llama-server runs the head with `--model-draft "
        f"{path.name} --spec-type {SPEC_TYPES.get(name, 'draft-mtp')}`"
    )
