"""A run that can be made again: model, settings and prompts in one TOML file, and what came out.

Settings stand there as numbers, nothing is left to the machine; files are named by path and by the
BLAKE2b digest of their content, so that a file that moved is found again and one that was replaced
is not taken.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import tomlkit
from pydantic import Field, ValidationError

from engine.configuration import Configuration, Count
from engine.errors import EngineError
from engine.files import RECORDS_BYTES, read_text, replace_file
from engine.model.gguf import read_gguf
from engine.parsing import check_text, parse_toml
from engine.planning.resolve import as_written
from engine.presets.library import preset_of
from engine.presets.preset import Preset, Strict
from engine.requests import GenerationRequest, Message
from engine.speculation.stats import first_divergence
from engine.validation import faults_of

MAX_PROMPTS = 10_000
SHOWN_DIGITS = 12
"""Of a digest in a message."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""BLAKE2b of a whole file, 256 bits in hexadecimal."""
HashFile = Callable[[Path], str]


class ManifestError(EngineError):
    """A manifest that cannot be read, or whose files are not the ones it was made with."""

    title = "The manifest cannot be run"


class UnwrittenManifestError(ManifestError):
    """A manifest cannot be written; the run it is of was made."""

    title = "The manifest cannot be written"


class Hashes(Strict, frozen=True):
    """Digests of the files of a run."""

    model: tuple[Digest, ...] = Field(min_length=1)
    """Of each part of the model."""
    lora: tuple[Digest, ...] = ()
    """Of each adapter."""
    grammar: tuple[Digest, ...] = ()
    """Of the JSON schema or grammar."""


class RecordedReply(Strict, frozen=True):
    """What a prompt was answered with."""

    finish_reason: str
    token_ids: tuple[Count, ...]
    """Without the token that ended the turn."""


class Manifest(Strict, frozen=True):
    """One run."""

    version: Literal[1] = 1
    made_with: str = ""
    """Programs and their versions, in words."""
    prompts: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_PROMPTS)]
    """Each is answered on its own, in this order."""
    system: str = ""
    """The system prompt of each; empty is none."""
    raw: bool = False
    """Whether the prompts go without the model's chat template."""
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    """Of the noise of each reply."""
    max_tokens: Annotated[Count, Field(ge=1)] | None = None
    stop: tuple[str, ...] = ()
    """Texts that end a reply."""
    hashes: Hashes
    preset: Preset
    """Everything else, as numbers."""
    replies: tuple[RecordedReply, ...] = ()
    """What came out, one for each prompt; empty asks for no comparison."""
    asked: Digest | None = None
    """`digest` when the replies were recorded."""

    @property
    def digest(self) -> str:
        """The digest of everything that decides the replies."""
        decisive = self.model_dump_json(exclude={"made_with", "replies", "asked"})
        return hashlib.blake2b(decisive.encode(), digest_size=32).hexdigest()

    @property
    def requests(self) -> tuple[GenerationRequest, ...]:
        """What is asked, in order."""
        system = (Message("system", self.system),) if self.system else ()
        return tuple(
            GenerationRequest(
                messages=() if self.raw else (*system, Message("user", prompt)),
                raw_prompt=prompt if self.raw else None,
                sampling=self.preset.sampling.settings(),
                max_tokens=self.max_tokens,
                stop=self.stop,
                seed=self.seed,
            )
            for prompt in self.prompts
        )

    def configuration(self, find: Callable[[str], Path]) -> Configuration:
        """The configuration of the run, without drafts: the text then follows from the model alone.

        Args:
            find: Gives the file of a model that is named by path; raises where it is not there.

        Raises:
            PresetError: a setting is left to the machine, or they contradict each other.
            ManifestError: the preset names no model.
        """
        if self.preset.model is None:
            raise ManifestError("preset.model is missing: set it to the path of the model file")
        rules = self.preset.model_copy(update={"draft": None})
        return as_written(rules, find(self.preset.model)).without_drafts


def made_manifest(
    configuration: Configuration,
    *,
    prompts: tuple[str, ...],
    system: str,
    request: GenerationRequest,
    hashes: Hashes,
    made_with: str,
) -> Manifest:
    """The manifest of a run that is about to be made.

    Args:
        configuration: What was loaded, with its threads as numbers.
        prompts: As they were asked.
        system: The system prompt, empty where there is none.
        request: Of one of the prompts; it has a seed.
        hashes: Of the configuration's files.
        made_with: Programs and versions.

    Raises:
        ManifestError: a text has half of a character, or the request has no seed.
    """
    try:
        for text in (*prompts, system, *request.stop):
            check_text(text)
        return Manifest(
            made_with=made_with,
            prompts=prompts,
            system=system,
            raw=request.raw_prompt is not None,
            seed=-1 if request.seed is None else request.seed,
            max_tokens=request.max_tokens,
            stop=request.stop,
            hashes=hashes,
            preset=preset_of(configuration.without_drafts, "manifest"),
        )
    except ValidationError as error:
        raise ManifestError(faults_of(error, Manifest, "this run")) from error
    except ValueError as error:
        raise ManifestError(f"this run cannot be written as a manifest: {error}") from error


def read_manifest(path: Path) -> Manifest:
    """The manifest of a file.

    Raises:
        ManifestError: it cannot be read or is not valid; every bad key and value is named.
    """
    try:
        data = parse_toml(read_text(path, limit=RECORDS_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise ManifestError(f"{path.name} is not valid TOML: {error}") from error
    try:
        manifest = Manifest.model_validate(data)
    except ValidationError as error:
        raise ManifestError(faults_of(error, Manifest, path.name)) from error
    if manifest.replies and len(manifest.replies) != len(manifest.prompts):
        raise ManifestError(
            f"{path.name} has {len(manifest.prompts)} prompts and {len(manifest.replies)} "
            "replies: remove all replies, or keep one reply per prompt"
        )
    return manifest


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write a manifest, its defaults too: another version may have others.

    Raises:
        UnwrittenManifestError: the file cannot be written.
    """
    text = tomlkit.dumps(manifest.model_dump(mode="json", exclude_none=True))
    try:
        replace_file(path, [text.encode()], is_durable=False)
    except OSError as error:
        raise UnwrittenManifestError(f"{path}: {error.strerror or error}") from error


def hashes_of(configuration: Configuration, hash_file: HashFile) -> Hashes:
    """The digests of a configuration's files.

    Raises:
        ModelFileError: a file cannot be read.
    """
    return Hashes(
        model=tuple(map(hash_file, read_gguf(configuration.model_path).paths)),
        lora=tuple(map(hash_file, configuration.lora_paths)),
        grammar=tuple(
            hash_file(Path(path))
            for path in (configuration.sampling.json_schema, configuration.sampling.grammar)
            if path
        ),
    )


def check_hashes(manifest: Manifest, configuration: Configuration, hash_file: HashFile) -> None:
    """Make sure that the files are those that a manifest was made with.

    Raises:
        ManifestError: one is another; it is named with both digests.
        ModelFileError: a file cannot be read.
    """
    found, wanted = hashes_of(configuration, hash_file), manifest.hashes
    paths = {"model": configuration.model_path, "lora": None, "grammar": None}
    for name, path in paths.items():
        has, wants = getattr(found, name), getattr(wanted, name)
        if has != wants:
            where = f"preset.{name}" + (" or with --model" if name == "model" else "")
            raise ManifestError(
                f"the {name} file differs: {path or 'it'} has the SHA-256 {_digits(has)}, but "
                f"the manifest expects {_digits(wants)}; specify the right file in {where}, or "
                "write a new manifest"
            )


def parted_at(recorded: RecordedReply, token_ids: tuple[int, ...]) -> int | None:
    """The index of the first token that is another than was recorded; None where all are equal."""
    return first_divergence(recorded.token_ids, token_ids)


def _digits(digests: tuple[str, ...]) -> str:
    return ", ".join(digest[:SHOWN_DIGITS] for digest in digests) or "none"
