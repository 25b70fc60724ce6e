"""Which models of the catalogue can draft for which.

They go by the family of their vocabulary: a name that looks alike proves nothing.
"""

import re
from dataclasses import dataclass

from engine.model.catalog import CatalogEntry, entries, find_entry
from engine.model.vocabulary_headers import have_like_sizes

LARGEST_SHARE = 0.2
"""Most parameters of a draft against its target's: a draft that costs more gains nothing."""

FAMILIES = {
    "Llama 3": r"llama-3\.",
    "Llama 2": r"(llama-2|codellama|tinyllama)-",
    "Qwen 2.5": r"qwen2\.5-(?!vl)",
    "Qwen 3": r"qwen3-(?!next|vl)",
    "Qwen 3.5": r"qwen3\.[56]-",
    "Gemma 2": r"gemma-2-",
    "Gemma 3": r"gemma-3-",
    "SmolLM2": r"smollm2-",
    "StarCoder 2": r"starcoder2-",
    "DeepSeek Coder": r"deepseek-coder-",
    "EXAONE 4": r"exaone-4\.0-",
    "ERNIE 4.5": r"ernie-4\.5-",
}
"""Models of the catalogue that share a vocabulary, by their names. TinyLlama and Code Llama have
that of Llama 2; Qwen 2.5 and 3 differ in the tokens that mark thinking and tools."""


@dataclass(frozen=True, slots=True)
class DraftPair:
    """A model that can draft for another."""

    target: str
    draft: str
    share: float
    """Parameters of the draft over those of the target: what drafting a token costs, roughly."""


def recommended_drafts(target: str) -> tuple[DraftPair, ...]:
    """Give the models of the catalogue that can draft for one of it, the cheapest first.

    Raises:
        ModelFileError: the catalogue has no such model.
    """
    entry = find_entry(target)
    family = vocabulary_family(entry.name)
    if family is None:
        return ()
    kin = [each for each in entries() if each != entry and vocabulary_family(each.name) == family]
    pairs = [_pair(entry, each) for each in kin if have_like_sizes(entry.n_vocab, each.n_vocab)]
    useful = (pair for pair in pairs if pair.share <= LARGEST_SHARE)
    return tuple(sorted(useful, key=lambda pair: pair.share))


def vocabulary_family(name: str) -> str | None:
    """Give the family of a catalogue model's vocabulary; None where no other has it."""
    return next((f for f, pattern in FAMILIES.items() if re.match(pattern, name)), None)


def _pair(target: CatalogEntry, draft: CatalogEntry) -> DraftPair:
    return DraftPair(target.name, draft.name, draft.n_parameters / target.n_parameters)
