"""Runs that are made again from a manifest, and manifests of runs that were made."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from app import __version__, paths
from app.config import Settings
from engine.builds import installed_build
from engine.cache.namespace import FileHashes
from engine.configuration import Configuration
from engine.events import Finished, FinishReason, Loaded
from engine.files import expanded, is_file
from engine.manifest import (
    Manifest,
    RecordedReply,
    check_hashes,
    divergence_at,
    hashes_of,
    made_manifest,
    read_manifest,
)
from engine.model.library import find_model
from engine.requests import GenerationRequest


def open_manifest(
    path: Path, model: str | None, settings: Settings
) -> tuple[Manifest, Configuration]:
    """A manifest, and the configuration that it is run with.

    Args:
        path: Its file.
        model: Where the model lies now; None is where the manifest says, else a file of that name
            beside the manifest or in the folders of models.
        settings: They name those folders.

    Raises:
        ManifestError: it is not valid, or a file is another one than it was made with.
        ModelFileError: a file is not there.
    """
    manifest = read_manifest(path)
    folders = paths.model_folders(settings.models.folders)
    own = manifest.preset.model

    def find(name: str) -> Path:
        if model is not None and name == own:
            return find_model(model, folders)
        beside = path.parent / Path(name).name
        near = next((file for file in (expanded(name), beside) if is_file(file)), None)
        return near.absolute() if near is not None else find_model(Path(name).name, folders)

    configuration = manifest.configuration(find)
    check_hashes(manifest, configuration, FileHashes(paths.hashes_path()).digest)
    return manifest, configuration


def recorded(
    loaded: Loaded,
    *,
    prompts: tuple[str, ...],
    system: str,
    request: GenerationRequest,
    replies: Sequence[Finished],
    since: float,
) -> Manifest:
    """The manifest of a run that was made.

    Args:
        loaded: The model that answered.
        prompts: As they were asked.
        system: The system prompt, empty where there is none.
        request: Of one of the prompts.
        replies: To each of them.
        since: When the run began, in seconds since the epoch; a model's file that changed later is
            not the one that answered.

    Raises:
        ManifestError: the run makes none.
        ModelFileError: a file cannot be read, or changed.
    """
    configuration = loaded.configuration
    if loaded.n_threads is not None:
        n_decode, n_prefill = loaded.n_threads
        configuration = replace(configuration, n_threads=n_decode, n_threads_batch=n_prefill)
    digest = partial(FileHashes(paths.hashes_path()).digest, unchanged_since=since)
    manifest = made_manifest(
        configuration,
        prompts=prompts,
        system=system,
        request=request,
        hashes=hashes_of(configuration, digest),
        made_with=made_with(),
    )
    kept = tuple(
        RecordedReply(finish_reason=reply.reason.value, token_ids=reply.token_ids)
        for reply in replies
    )
    return manifest.model_copy(update={"replies": kept, "asked": manifest.digest})


def made_with() -> str:
    """This program and the one that computes, with their versions."""
    return f"kvchat {__version__}, llama-cpp-python {installed_build().partition('@')[0]}"


_ENDS = {
    FinishReason.LENGTH.value: "`max_tokens` was reached",
    FinishReason.STOP_STRING.value: "the reply ended at a stop string",
    FinishReason.STOP_TOKEN.value: "the reply ended at a stop token",
    FinishReason.CONTEXT.value: "the context was full",
    FinishReason.CANCELLED.value: "the reply was stopped",
}
"""Why a reply ended that could have gone on with the same tokens."""


def difference(manifest: Manifest, index: int, finished: Finished) -> str | None:
    """What is to be said of a reply that is not the recorded one; None where it is, or none is."""
    if not manifest.replies:
        return None
    told = manifest.replies[index]
    at = divergence_at(told, finished.token_ids)
    if at is None:
        return None
    n_told, n_here = len(told.token_ids), len(finished.token_ids)
    here = made_with()
    cause = "another processor or GPU may round differently"
    if manifest.asked not in (None, manifest.digest):
        cause = "the manifest was edited after it was recorded"
    elif here != manifest.made_with:
        cause = f"it was recorded with {manifest.made_with} and run with {here}"
    if at < min(n_told, n_here):
        matching = f"up to token {at} of {n_told}"
        return f"reply {index + 1} matches the recording only {matching}: {cause}"
    reason = finished.reason.value if n_here < n_told else told.finish_reason
    cause = _ENDS.get(reason, cause)
    if n_here < n_told:
        return f"reply {index + 1} ends after {n_here} of the {n_told} recorded tokens: {cause}"
    return (
        f"reply {index + 1} has {n_here} tokens, but the recorded reply ends after {n_told}: "
        f"{cause}"
    )
