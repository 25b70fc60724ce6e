"""Draft models for a target: on this machine and in the catalogue."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.configuration import (
    Configuration,
    ControllerName,
    DraftConfiguration,
    PredictorName,
    SpeculationSettings,
)
from engine.errors import ModelFileError
from engine.model.architecture import Model
from engine.model.catalog import CatalogEntry, entries, recommended_drafts
from engine.model.identity import ModelKind
from engine.model.library import HeaderFacts, ModelEntry
from engine.model.ollama import model_name
from engine.model.tensor_table import token_reads
from engine.model.vocabulary import difference_of, read_tokens, vocabulary_facts
from engine.planning.draft_advice import (
    Advice,
    MachineKind,
    Worth,
    share_of,
    should_use_speculation,
)
from engine.presets.llama_server import arguments

RECURRENT = (
    "the target is a recurrent model, whose state cannot be rolled back after a rejected "
    "token, so it runs without drafts"
)
ONLY_A_HEAD = "this file is a draft head (EAGLE-3 or MTP) and works only with its own target"
PUBLISHED_AS = re.compile(r"[\w.-]+/[\w.-]+$")
EXPORT_N_CTX = 4096
"""Not part of the draft options, so any value works."""


@dataclass(frozen=True, slots=True)
class DraftOption:
    """A model and its expected gain as a draft."""

    name: str
    advice: Advice
    path: Path | None = None
    """Path of the model; None if it is not on this machine."""
    nbytes: int | None = None
    """Size of its files, or of the catalogue's usual quantisation."""
    file_type: str | None = None
    share: float | None = None
    """Bytes that the draft model reads per token, divided by those of the target."""
    published_as: str | None = None
    """Hugging Face repository of the model, such as `owner/name`."""

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key, the best first: the verdict, then the geometric mean of the expected gain."""
        low, high = self.advice.low, self.advice.high
        gain = 0.0 if low is None or high is None else low.factor * high.factor
        return list(Worth).index(self.advice.worth), -gain


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """The draft models found for one target."""

    target: str
    target_path: Path
    """A bare name if the target is not on this machine."""
    drafts: tuple[DraftOption, ...]
    """Models on this machine with the target's vocabulary, the best first."""
    unsuitable: tuple[DraftOption, ...]
    """Models on this machine that cannot draft for it."""
    missing: tuple[DraftOption, ...]
    """Catalogue models that are not on this machine, the best first."""
    look_up: Advice
    """The expected gain of lookup, without a draft model."""
    problem: str | None = None
    """Why no model can draft for the target; None if one can."""

    @property
    def best(self) -> DraftOption | None:
        """The draft on this machine to load; None if none is expected to gain."""
        pays = (Worth.USE, Worth.DEPENDS)
        return next((each for each in self.drafts if each.advice.worth in pays), None)


def options_of(
    target: Model,
    models: Sequence[ModelEntry],
    own: HeaderFacts | None,
    machine: MachineKind,
) -> DraftOptions:
    """Rank this machine's models and the catalogue's recommendations as drafts of a target.

    `own` are the facts of the target's header, used to skip its copies; None if it is not a file.
    """
    reads, path, facts = token_reads(target.file), target.file.path, vocabulary_facts(target.file)
    tokens = read_tokens(path, facts) if facts.tokens_end and facts.n_tokens else None

    def misfit_of(model: ModelEntry) -> str | None:
        if model.kind is ModelKind.DRAFT or model.vocabulary is None:
            return ONLY_A_HEAD
        try:
            return difference_of((path, facts), (model.path, model.vocabulary), tokens)
        except ModelFileError as error:
            return str(error)

    def option(model: ModelEntry) -> DraftOption:
        draft = None if model.kind is ModelKind.DRAFT else model.reads
        advice = should_use_speculation(reads, draft, machine=machine, misfit=misfit_of(model))
        share = None if draft is None else share_of(draft, reads)
        return DraftOption(model.name, advice, model.path, model.nbytes, model.file_type, share)

    identity = None if own is None else own.identity
    here = [
        option(each)
        for each in models
        if each.path != path and (identity is None or each.identity != identity) and _drafts(each)
    ]
    here.sort(key=lambda each: each.rank)
    missing = _missing(target, [each.name for each in models], machine)
    return DraftOptions(
        target=model_name(path),
        target_path=path,
        drafts=tuple(each for each in here if each.advice.worth is not Worth.MISFIT),
        unsuitable=tuple(each for each in here if each.advice.worth is Worth.MISFIT),
        missing=tuple(sorted(missing, key=lambda each: each.rank)),
        look_up=should_use_speculation(reads, None, machine=machine),
        problem=RECURRENT if target.architecture.is_recurrent else None,
    )


def _drafts(model: ModelEntry) -> bool:
    """Whether a file is a readable language model or draft head."""
    if model.kind is ModelKind.DRAFT:
        return True
    return model.kind is ModelKind.MODEL and None not in (model.vocabulary, model.reads)


def _missing(target: Model, names: Sequence[str], machine: MachineKind) -> Iterator[DraftOption]:
    """The catalogue's recommended drafts that are not among `names`."""
    entry, reads = entry_of(model_name(target.file.path)), token_reads(target.file)
    for draft in () if entry is None else recommended_drafts(entry):
        if any(entry_of(name) == draft for name in names):
            continue
        header = draft.header()
        own = token_reads(header)
        published = PUBLISHED_AS.search(draft.source)
        yield DraftOption(
            name=draft.name,
            advice=should_use_speculation(reads, own, machine=machine),
            nbytes=header.nbytes,
            file_type=header.file_type,
            share=share_of(own, reads),
            published_as=published[0] if published else None,
        )


def entry_of(file_name: str) -> CatalogEntry | None:
    """The catalogue entry with the longest name that a file's name begins with."""
    plain = _plain(file_name)
    names = {name: entry for entry in entries() for name in (entry.name, *entry.aliases)}
    found = [name for name in names if plain.startswith(_plain(name))]
    return names[max(found, key=len)] if found else None


def server_options(draft: DraftOption) -> list[str]:
    """llama-server's options for drafting with a model of this machine."""
    assert draft.path is not None
    speculation = SpeculationSettings(
        PredictorName.DRAFT, ControllerName.FIXED, n_draft=max(1, draft.advice.n_draft)
    )
    configuration = Configuration(
        model_path=draft.path,
        n_ctx=EXPORT_N_CTX,
        draft=DraftConfiguration(draft.path, EXPORT_N_CTX),
        speculation=speculation,
    )
    words = arguments(configuration)
    return words[words.index("--spec-type") :]  # speculation is last


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())
