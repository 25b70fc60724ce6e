"""Manifests of runs: open one, record one, and compare a reply with its recording."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from app import __version__, paths
from app.config import Settings
from engine.builds import installed_build
from engine.cache.namespace import FileHashes
from engine.configuration import Configuration
from engine.events import Finished, Loaded
from engine.files import expanded, is_file
from engine.manifest import (
    Manifest,
    RecordedReply,
    check_hashes,
    hashes_of,
    made_manifest,
    read_manifest,
)
from engine.model.library import find_model
from engine.requests import GenerationRequest
from engine.speculation.stats import first_divergence


def open_manifest(
    path: Path, model: str | None, settings: Settings
) -> tuple[Manifest, Configuration]:
    """A manifest, and the configuration that it is run with.

    Args:
        path: Its file.
        model: The model's path now; None is the path in the manifest, else a file of that name
            beside the manifest or in the folders of models.
        settings: They name those folders.

    Raises:
        ManifestError: it is not valid, or a file differs from the recorded one.
        ModelFileError: a file does not exist.
    """
    manifest = read_manifest(path)
    folders = paths.model_folders(settings.models.folders)

    def find(name: str) -> Path:
        if model is not None and name == manifest.preset.model:
            return find_model(model, folders)
        files = (expanded(name), path.parent / Path(name).name)
        near = next(filter(is_file, files), None)
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
    """The manifest of a run.

    Raises:
        ManifestError: the run cannot be recorded.
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
    recordings = tuple(
        RecordedReply(finish_reason=reply.reason.value, token_ids=reply.token_ids)
        for reply in replies
    )
    return manifest.model_copy(update={"replies": recordings, "asked": manifest.digest})


def made_with() -> str:
    """The versions of kvchat and llama-cpp-python."""
    return f"kvchat {__version__}, llama-cpp-python {installed_build().partition('@')[0]}"


def difference(manifest: Manifest, index: int, finished: Finished) -> str | None:
    """How a reply differs from its recording, and why; None if it does not, or has none."""
    if not manifest.replies:
        return None
    recording = manifest.replies[index]
    at = first_divergence(recording.token_ids, finished.token_ids)
    if at is None:
        return None
    here = made_with()
    cause = "another processor or GPU may round differently"
    if manifest.asked not in (None, manifest.digest):
        cause = "the manifest was edited after it was recorded"
    elif here != manifest.made_with:
        cause = f"the manifest was recorded with {manifest.made_with} and run with {here}"
    return (
        f"reply {index + 1}, with {len(finished.token_ids)} tokens ({finished.reason}), matches "
        f"the recording only up to token {at} of {len(recording.token_ids)}: {cause}"
    )
