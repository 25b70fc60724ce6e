"""The user's models: offers of the hub, favourites, and the files of a model to delete."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app import format as fmt
from app import paths
from engine.configuration import Configuration
from engine.errors import ModelFileError
from engine.files import reason_of
from engine.model.catalog import find_entry
from engine.model.gguf import SPLIT_NAME, names_of_parts
from engine.model.hub import (
    HF_PREFIX,
    DownloadError,
    HubModel,
    HubName,
    find_repositories,
    parse_hub_name,
    repository_models,
)
from engine.model.ollama import BLOBS, model_name
from engine.planning.models import ModelOption, choose, fit_context, hub_options
from engine.planning.planner import Planner, Setup
from engine.planning.request import Progress, take_model
from engine.planning.resolve import AUTO_N_CTX
from engine.planning.verdict import FitVerdict

HF_BLOBS = "blobs"


@dataclass(frozen=True, slots=True)
class HubOffer:
    """The models of a repository, each with its verdict on this machine."""

    repo: str
    models: tuple[HubModel, ...]
    options: tuple[ModelOption, ...]

    @property
    def best(self) -> HubModel | None:
        """The one to take where none is named; None where none fits."""
        return choose(self.models, self.options)

    def option_of(self, model: HubModel) -> ModelOption:
        """The verdict on one of its models."""
        return self.options[self.models.index(model)]

    def named(self, words: str) -> HubModel:
        """The model whose name holds a quantisation, or is a file name.

        Raises:
            ModelFileError: none or several do; the message lists what there is.
        """
        wanted = words.lower().removesuffix(".gguf")
        holding = [each for each in self.models if wanted in each.name.lower()]
        exact = [each for each in holding if each.name.lower().endswith(wanted)]
        found = exact if len(exact) == 1 else holding
        if len(found) == 1:
            return found[0]
        names = ", ".join(each.name for each in found or self.models)
        why = "has no file" if not found else "has several files"
        raise ModelFileError(f"{self.repo} {why} matching {words!r}: specify one of {names}")


def read_offer(
    asked: HubName,
    planner: Planner,
    progress: Progress | None = None,
    *,
    setup_of: Callable[[str], Setup] | None = None,
) -> HubOffer:
    """The files of a repository, with a verdict for this machine by the header of one of them.

    Args:
        asked: The repository; a quantisation leaves the others out.
        planner: Reads the header, and then knows it.
        progress: Called with the bytes of the header that were read.
        setup_of: The setup that the verdicts are for, by the address of that file; None is this
            machine with the usual context.

    Raises:
        DownloadError: the repository cannot be listed.
        ModelFileError: the header cannot be read.
    """
    models = repository_models(asked.repo, asked.revision)
    wanted = (asked.quantization or "").lower()
    models = [each for each in models if wanted in each.name.lower()] or models
    sample = choose(models, [ModelOption("", "", (), FitVerdict.FITS)] * len(models))
    assert sample is not None
    if setup_of is None:
        path = take_model(sample.address, planner, progress)
        setup = Setup(Configuration(path, AUTO_N_CTX))
    else:
        setup = setup_of(sample.address)
    read = planner.model(setup.configuration.model_path)
    options = hub_options(models, read, fit_context(setup, planner))
    return HubOffer(asked.repo, tuple(models), tuple(options))


def repository_of(name: str) -> HubName:
    """The repository that holds a model: of an `hf:` name, or the usual one of a name.

    A name of the catalogue means the repository of its maker, else the one that is used most.

    Raises:
        ModelFileError: the name means neither.
        DownloadError: the hub cannot be asked, or has no such repository; or no repository is
            called so.
    """
    if (asked := parse_hub_name(name)) is not None:
        return asked
    if name.lower().startswith(HF_PREFIX):
        raise DownloadError(
            f"{name!r} is not a Hugging Face repository: write hf:owner/repository, "
            "hf:owner/repository:Q4_K_M or hf:owner/repository/file.gguf"
        )
    plain, _, quantization = name.rpartition(":")
    try:
        entry = find_entry(name)
        quantization = ""
    except ModelFileError:
        entry = find_entry(plain or name)
    found = find_repositories(entry.name, maker_of(entry.source))
    if not found:
        raise ModelFileError(
            f"the hub has no GGUF repository for {entry.name}: specify hf:owner/repository"
        )
    return HubName(found[0].name, quantization=quantization or None)


def maker_of(source: str) -> str:
    """The owner in the source of a catalogue entry, `config.json of Qwen/Qwen3-8B`; else empty."""
    owner, slash, _ = source.rpartition(" ")[2].partition("/")
    return owner if slash else ""


def verdict_text(option: ModelOption) -> str:
    """A verdict in words: whether the model fits, its context and its maximum speed."""
    if option.problem or option.verdict is None:
        return option.problem or "not computed"
    context = f"{option.n_ctx or 0:,} tokens of context"
    match option.verdict:
        case FitVerdict.FITS:
            text = f"fits with {context}"
        case FitVerdict.TIGHT:
            text = f"barely fits with {context}"
        case FitVerdict.NO if option.spills:
            text = f"fits partly on the GPU and partly in RAM, with {context}"
        case FitVerdict.NO:
            text = f"does not fit with {context}"
    if option.max_n_ctx is not None and option.max_n_ctx != option.n_ctx:
        text += f"; at most {option.max_n_ctx:,} tokens fit"
    if option.bound is not None and option.bound.tps is not None:
        text += f"; at most {fmt.rate(option.bound.tps)} tok/s (limited by memory bandwidth)"
    return text


def favourites() -> frozenset[str]:
    """The identities of the models that the user marked: each is the name of an empty file."""
    try:
        return frozenset(path.name for path in paths.favourites_dir().iterdir())
    except OSError:
        return frozenset()


def mark_favourite(identity: str, *, is_favourite: bool) -> None:
    """Mark a model by its identity, or remove the mark.

    Raises:
        ModelFileError: the folder cannot be written.
    """
    path = paths.favourites_dir() / identity
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch() if is_favourite else path.unlink(missing_ok=True)
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be written ({reason_of(error)}): the favourite is not saved"
        ) from error


@dataclass(frozen=True, slots=True)
class Removal:
    """Files to delete with a model."""

    name: str
    files: tuple[Path, ...]
    nbytes: int

    @property
    def question(self) -> str:
        """Question that the user must confirm before the deletion."""
        files = fmt.counted(len(self.files), "file")
        folder = self.files[0].parent
        return f"Delete {self.name}, {files} of {fmt.nbytes(self.nbytes)} in {folder}?"

    def run(self) -> None:
        """Remove the files.

        Raises:
            ModelFileError: one cannot be removed.
        """
        for path in self.files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise ModelFileError(
                    f"{path} cannot be removed ({reason_of(error)}): make its folder writable"
                ) from error


def removal_of(path: Path) -> Removal:
    """The files of a model: all parts of a split one; of Hugging Face's cache, link and content.

    A link to a file elsewhere goes alone.

    Raises:
        ModelFileError: the model belongs to Ollama, which records its own files.
    """
    name = model_name(path)
    if path.parent.name == BLOBS and name != path.stem:
        raise ModelFileError(f"{name} belongs to Ollama: remove it with `ollama rm {name}`")
    files = [file for part in _parts(path) for file in _with_content(part)]
    nbytes = sum(file.stat().st_size for file in files if file.exists() and not file.is_symlink())
    return Removal(name, tuple(files), nbytes)


def is_used(removal: Removal, configuration: Configuration | None) -> bool:
    """Whether a configuration is loaded from a file that would go."""
    if configuration is None:
        return False
    draft = () if configuration.draft is None else (configuration.draft.model_path,)
    projector = () if configuration.mmproj_path is None else (configuration.mmproj_path,)
    used = (configuration.model_path, *draft, *projector, *configuration.lora_paths)
    parts = {part.resolve() for path in used for part in _parts(path)}
    return any(file.resolve() in parts for file in removal.files)


def _parts(path: Path) -> Sequence[Path]:
    split = SPLIT_NAME.match(path.name)
    if split is None:
        return [path]
    return [part for name in names_of_parts(split) if os.path.lexists(part := path.with_name(name))]


def _with_content(path: Path) -> Iterator[Path]:
    yield path
    if path.is_symlink():
        content = path.resolve()
        # models--owner--name/snapshots/REVISION/[folder/]file -> models--owner--name/blobs/DIGEST
        if content.parent.name == HF_BLOBS and path.is_relative_to(content.parent.parent):
            yield content
