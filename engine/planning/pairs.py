"""Which models can draft for another: those on this machine, and those that the catalogue knows."""

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
from engine.model.catalog import CatalogEntry, entries, find_entry, recommended_drafts
from engine.model.header_cache import HeaderFacts
from engine.model.identity import ModelKind
from engine.model.library import ModelEntry
from engine.model.ollama import model_name
from engine.model.tensor_table import TokenReads, token_reads
from engine.model.vocabulary import TokenList, difference_of, vocabulary_facts
from engine.planning.draft_advice import Advice, MachineKind, Worth, should_use_speculation
from engine.presets.programs.llama_server_drafts import draft_words

RECURRENT = (
    "the target is a recurrent model: its state cannot go back behind a refuted token, so nothing "
    "drafts for it"
)
ONLY_A_HEAD = "it drafts only as a part of its own model (EAGLE-3, a next-token head)"
PUBLISHED_AS = re.compile(r"[\w.-]+/[\w.-]+$")
EXPORT_N_CTX = 4096
"""Any: the options of drafting do not name it."""


@dataclass(frozen=True, slots=True)
class DraftOption:
    """A model and what it would bring as a draft."""

    name: str
    advice: Advice
    path: Path | None = None
    """None where it is not on this machine."""
    nbytes: int | None = None
    """Size of its files; of the catalogue's usual quantisation where it is not here."""
    file_type: str | None = None
    share: float | None = None
    """Bytes that a step of it reads over those of the target."""
    published_as: str | None = None
    """Where the catalogue knows it from, such as an owner and a repository of Hugging Face."""

    @property
    def rank(self) -> tuple[int, float]:
        """Sorts the best first: by verdict, then by the middle of the gain to expect."""
        low, high = self.advice.low, self.advice.high
        gain = 0.0 if low is None or high is None else low.factor * high.factor
        return list(Worth).index(self.advice.worth), -gain


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """All that was looked at for one target."""

    target: str
    target_path: Path
    """Only its name where it is not on this machine."""
    drafts: tuple[DraftOption, ...]
    """Those on this machine whose tokens are the target's, the best first."""
    misfits: tuple[DraftOption, ...]
    """Those on this machine that cannot draft for it."""
    missing: tuple[DraftOption, ...]
    """Those of the catalogue that are not here, the best first."""
    look_up: Advice
    """What drafts that are read off the chat would bring, without any draft model."""
    problem: str | None = None
    """Why nothing can draft for the target, None where something could."""

    @property
    def best(self) -> DraftOption | None:
        """The draft on this machine to load, None where none pays."""
        pays = (Worth.USE, Worth.DEPENDS)
        return next((each for each in self.drafts if each.advice.worth in pays), None)


class DraftAdvisor:
    """What each model would bring as a draft of one target."""

    def __init__(self, target: Model, machine: MachineKind) -> None:
        self._target = target
        self._machine = machine
        self._facts = vocabulary_facts(target.file)
        self._reads = token_reads(target.file)
        has_tokens = self._facts.tokens_end and self._facts.n_tokens
        self._tokens = TokenList(target.file.path, self._facts) if has_tokens else None

    def options(self, models: Sequence[ModelEntry], target: HeaderFacts | None) -> DraftOptions:
        """The models of the folders, and those of the catalogue that are not among them.

        Args:
            models: GGUF files and what their headers say.
            target: What the target's own header says, to leave its copies out; None where it is
                no file.
        """
        options = sorted(self._here(models, target), key=lambda each: each.rank)
        is_misfit = Worth.MISFIT
        names = [each.name for each in models]
        return DraftOptions(
            target=model_name(self._target.file.path),
            target_path=self._target.file.path,
            drafts=tuple(each for each in options if each.advice.worth is not is_misfit),
            misfits=tuple(each for each in options if each.advice.worth is is_misfit),
            missing=tuple(sorted(self._missing(names), key=lambda each: each.rank)),
            look_up=should_use_speculation(self._reads, None, machine=self._machine),
            problem=RECURRENT if self._target.architecture.is_recurrent else None,
        )

    def _here(
        self, models: Sequence[ModelEntry], target: HeaderFacts | None
    ) -> Iterator[DraftOption]:
        identity = None if target is None else target.identity
        for each in models:
            is_target = each.path == self._target.file.path
            if not is_target and (identity is None or each.identity != identity):
                option = self._as_draft(each)
                if option is not None:
                    yield option

    def _as_draft(self, model: ModelEntry) -> DraftOption | None:
        """A file as a draft; None for one that is no language model."""
        if model.kind is ModelKind.DRAFT:
            return self._option(model, None, ONLY_A_HEAD)
        if model.kind is not ModelKind.MODEL or model.vocabulary is None or model.reads is None:
            return None
        try:
            misfit = difference_of(
                (self._target.file.path, self._facts),
                (model.path, model.vocabulary),
                self._tokens,
            )
        except ModelFileError as error:
            misfit = str(error)
        return self._option(model, model.reads, misfit)

    def _option(
        self, model: ModelEntry, reads: TokenReads | None, misfit: str | None
    ) -> DraftOption:
        return DraftOption(
            name=model.name,
            advice=should_use_speculation(self._reads, reads, machine=self._machine, misfit=misfit),
            path=model.path,
            nbytes=model.nbytes,
            file_type=model.file_type,
            share=None if reads is None else self._share(reads),
        )

    def _missing(self, names: Sequence[str]) -> Iterator[DraftOption]:
        entry = entry_of(model_name(self._target.file.path))
        for pair in () if entry is None else recommended_drafts(entry.name):
            draft = find_entry(pair.draft)
            if any(entry_of(name) == draft for name in names):
                continue
            header = draft.header()
            reads = token_reads(header)
            published = PUBLISHED_AS.search(draft.source)
            yield DraftOption(
                name=draft.name,
                advice=should_use_speculation(self._reads, reads, machine=self._machine),
                nbytes=header.nbytes,
                file_type=header.file_type,
                share=self._share(reads),
                published_as=published[0] if published else None,
            )

    def _share(self, reads: TokenReads) -> float:
        return reads.nbytes() / max(1, self._reads.nbytes())


def entry_of(file_name: str) -> CatalogEntry | None:
    """The model of the catalogue whose name begins a file's name, the longest such name."""
    plain = _plain(file_name)
    best: tuple[int, CatalogEntry | None] = (0, None)
    for entry in entries():
        for name in (entry.name, *entry.aliases):
            if plain.startswith(_plain(name)) and len(name) > best[0]:
                best = (len(name), entry)
    return best[1]


def server_options(draft: DraftOption) -> list[str]:
    """The options that make llama-server draft with a model, in the words of today's builds.

    Raises:
        ModelFileError: the draft is not on this machine.
    """
    if draft.path is None:
        raise ModelFileError(f"{draft.name} is not on this machine: download it first")
    configuration = Configuration(
        model_path=draft.path,
        n_ctx=EXPORT_N_CTX,
        draft=DraftConfiguration(draft.path, EXPORT_N_CTX),
        speculation=SpeculationSettings(
            predictor=PredictorName.DRAFT,
            controller=ControllerName.FIXED,
            n_draft=max(1, draft.advice.n_draft),
        ),
    )
    return draft_words(configuration)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())
