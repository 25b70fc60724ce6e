"""Reproducible runs: model, settings, prompts and recorded replies in one TOML file.

All settings are numbers, none depends on the machine. Files have a path and the BLAKE2b digest of
their content, so that a moved file can be found again and a replaced one is refused.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import tomlkit
from pydantic import Field, ValidationError

from engine.configuration import Configuration, Count
from engine.errors import EngineError
from engine.files import RECORDS_BYTES, read_text, reason_of, replace_file
from engine.model.gguf import read_gguf
from engine.parsing import check_text, parse_toml
from engine.planning.resolve import as_written
from engine.presets.library import preset_of
from engine.presets.preset import Preset, Strict
from engine.requests import GenerationRequest, Message
from engine.validation import faults_of

MAX_PROMPTS = 10_000
SHOWN_DIGITS = 12
"""Digits of a digest in a message."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""BLAKE2b of a whole file, 256 bits in hexadecimal."""
HashFile = Callable[[Path], str]


class ManifestError(EngineError):
    """A manifest cannot be read, or its files have changed."""

    title = "The manifest cannot be run"


class UnwrittenManifestError(ManifestError):
    """The manifest of a completed run cannot be written."""

    title = "The manifest cannot be written"


class Hashes(Strict, frozen=True):
    """Digests of the files of a run."""

    model: tuple[Digest, ...] = Field(min_length=1)
    """One per file of the model."""
    lora: tuple[Digest, ...] = ()
    """Digest of each adapter file."""
    grammar: tuple[Digest, ...] = ()
    """Digests of the JSON schema and the grammar."""


class RecordedReply(Strict, frozen=True):
    """The recorded reply to a prompt."""

    finish_reason: str
    token_ids: tuple[Count, ...]
    """Generated ids without the end token."""


class Manifest(Strict, frozen=True):
    """Prompts, settings, file hashes and token ids of a run that can be repeated exactly."""

    version: Literal[1] = 1
    made_with: str = ""
    """Programs and their versions, in words."""
    prompts: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_PROMPTS)]
    """Prompts of separate chats, answered in this order."""
    system: str = ""
    """System prompt of all chats; empty is none."""
    raw: bool = False
    """Whether the prompts are used without the chat template."""
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    """Sampling seed of each reply."""
    max_tokens: Annotated[Count, Field(ge=1)] | None = None
    stop: tuple[str, ...] = ()
    """Texts that end a reply."""
    hashes: Hashes
    preset: Preset
    """All other settings, as numbers."""
    replies: tuple[RecordedReply, ...] = ()
    """Recorded replies, one per prompt; empty skips the comparison."""
    asked: Digest | None = None
    """Value of `digest` when the replies were recorded."""

    @property
    def digest(self) -> str:
        """Digest of everything that determines the replies."""
        decisive = self.model_dump_json(exclude={"made_with", "replies", "asked"})
        return hashlib.blake2b(decisive.encode(), digest_size=32).hexdigest()

    @property
    def requests(self) -> tuple[GenerationRequest, ...]:
        """One request per prompt, in order."""
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
        """The configuration of the run, without drafts, so that only the model decides the text.

        Args:
            find: Returns the file for a model path, or raises if it is missing.

        Raises:
            PresetError: a setting depends on the machine, or settings contradict each other.
            ManifestError: the preset has no model.
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
    """Create the manifest of a run, without replies.

    Args:
        configuration: The loaded configuration, with thread counts as numbers.
        prompts: The prompts.
        system: The system prompt; empty is none.
        request: The request of any of the prompts, with a seed.
        hashes: Digests of the configuration's files.
        made_with: Programs and versions.

    Raises:
        ManifestError: a text is not valid Unicode, or the request has no seed.
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
    """Read and validate a manifest file.

    Raises:
        ManifestError: it cannot be read or is invalid; the message lists all bad keys and values.
    """
    try:
        data = parse_toml(read_text(path, limit=RECORDS_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} cannot be read: {reason_of(error)}") from error
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
    """Write a manifest including defaults, which another version may change.

    Raises:
        UnwrittenManifestError: the file cannot be written.
    """
    text = tomlkit.dumps(manifest.model_dump(mode="json", exclude_none=True))
    try:
        replace_file(path, [text.encode()], is_durable=False)
    except OSError as error:
        raise UnwrittenManifestError(f"{path}: {reason_of(error)}") from error


def hashes_of(configuration: Configuration, hash_file: HashFile) -> Hashes:
    """Compute the digests of a configuration's files.

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
    """Check that the files have the digests of the manifest.

    Raises:
        ManifestError: a file differs; the message has both digests.
        ModelFileError: a file cannot be read.
    """
    found, wanted = hashes_of(configuration, hash_file), manifest.hashes
    paths = {"model": configuration.model_path, "lora": None, "grammar": None}
    for name, path in paths.items():
        has, wants = getattr(found, name), getattr(wanted, name)
        if has != wants:
            where = f"preset.{name}" + (" or with --model" if name == "model" else "")
            raise ManifestError(
                f"the {name} file differs: {path or 'it'} has the digest {_digits(has)}, but "
                f"the manifest expects {_digits(wants)}; specify the right file in {where}, or "
                "write a new manifest"
            )


def _digits(digests: tuple[str, ...]) -> str:
    return ", ".join(digest[:SHOWN_DIGITS] for digest in digests) or "none"
