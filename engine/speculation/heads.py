"""Drafts that are no models: heads that read the hidden states of their target."""

from pathlib import Path

from engine.errors import IncompatiblePairError
from engine.model.gguf import read_gguf
from engine.model.kinds import ModelKind, kind_of

SPEC_TYPES = {"eagle3": "draft-eagle3", "dflash": "draft-dflash"}
"""What llama-server of llama.cpp 0c1e57098 calls the drafting of such a file; `draft-mtp` else."""


def check_is_no_head(path: Path) -> None:
    """Refuse a draft head (EAGLE-3, DFlash, a next-token head in a file of its own) as draft model.

    Raises:
        IncompatiblePairError: it is one; says why it cannot draft here and what can.
        ModelFileError: the file cannot be read.
    """
    file = read_gguf(path)
    if kind_of(file) is not ModelKind.DRAFT:
        return
    name = file.architecture
    raise IncompatiblePairError(
        f"{path.name} is a draft head ({name}), no model of its own: it reads hidden states of its "
        "target, and kvchat's predictors are told tokens only. Name a small model of the same "
        "vocabulary as draft, or use look-up; llama-server runs the head with "
        f"`--model-draft {path.name} --spec-type {SPEC_TYPES.get(name, 'draft-mtp')}`"
    )
