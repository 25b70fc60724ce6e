"""What is said of a draft model before it is loaded beside its target."""

from functools import lru_cache

from engine.configuration import Configuration
from engine.errors import IncompatiblePairError, ModelFileError
from engine.memory.hardware import has_gpu_backend
from engine.model.gguf import GgufFile, read_gguf
from engine.model.token_reads import token_reads
from engine.model.vocabulary_headers import check_headers
from engine.speculation.advice import Worth, should_use_speculation
from engine.speculation.expected_costs import MachineKind


def check_draft(configuration: Configuration) -> str | None:
    """Give a warning of a draft that cannot pay, None for one that may or where there is none.

    The words are those of `kvchat pairs`. A file whose header cannot be read is left to llama.cpp.

    Raises:
        IncompatiblePairError: the headers show that the draft's tokens mean something else.
    """
    if configuration.draft is None:
        return None
    try:
        target = read_gguf(configuration.model_path)
        draft = read_gguf(configuration.draft.model_path)
        check_headers(target, draft)
    except ModelFileError:
        return None
    return warning(configuration, target, draft)


def warning(configuration: Configuration, target: GgufFile, draft: GgufFile) -> str | None:
    """Give the warning of two headers, None where some length may gain."""
    on_gpu = configuration.n_gpu_layers != 0 and has_gpu_backend()
    return cannot_pay(target, draft, "gpu" if on_gpu else "cpu")


@lru_cache(maxsize=64)
def objection(target: GgufFile, draft: GgufFile, machine: MachineKind) -> str | None:
    """Give why a pair is not worth planning for: other tokens, or no gain; None where it may be."""
    try:
        check_headers(target, draft)
    except IncompatiblePairError as error:
        return str(error)
    except ModelFileError:
        return None
    return cannot_pay(target, draft, machine)


def cannot_pay(target: GgufFile, draft: GgufFile, machine: MachineKind) -> str | None:
    """Give the warning of a draft that gains nothing on a machine, None where it may."""
    advice = should_use_speculation(token_reads(target), token_reads(draft), machine=machine)
    if advice.worth is not Worth.NEVER:
        return None
    return (
        f"{draft.path.name} will not make {target.path.name} faster: {advice.reason}; choose a "
        "smaller draft (kvchat pairs judges those that are here), or look-up instead"
    )
