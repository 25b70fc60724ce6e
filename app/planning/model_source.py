"""Finds what a name means: a file here, a file elsewhere, or a model of the catalogue."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from app import paths
from app.planning.plan import Planner
from engine.errors import ModelFileError
from engine.model.architecture import Model, architecture_of
from engine.model.library import UnknownNameError, find_model
from engine.model.remote_address import is_remote

Progress = Callable[[str, int], None]
"""Told the name of a remote file and how many bytes of its header have come."""


def take_model(name: str, planner: Planner, progress: Progress | None = None) -> Path:
    """Make a planner know the model of a name, and give the path that it knows it by.

    A path and a name of the library come first, then the catalogue, whose names may have a
    quantisation behind a colon; a URL or an `hf:` name means that file. What is not on this machine
    has a bare file name for its path, and its header's `origin` says where it comes from.

    Raises:
        ModelFileError: nothing has that name, or its header cannot be read.
    """
    if is_remote(name):
        return planner.add(_remote(name, progress))
    try:
        return find_model(name, paths.model_folders())
    except UnknownNameError as unknown:
        return planner.add(_of_catalog(name, unknown))


def _remote(name: str, progress: Progress | None) -> Model:
    from engine.model.remote import read_remote  # what speaks HTTP takes 0.1 s to import

    file = read_remote(name, cache_folder=paths.remote_headers_dir(), progress=progress)
    return Model(file, architecture_of(file))


def _of_catalog(name: str, unknown: UnknownNameError) -> Model:
    from engine.model.catalog import DEFAULT_QUANTIZATION, find_entry

    wanted, quantization = name, DEFAULT_QUANTIZATION
    try:
        try:
            entry = find_entry(name)  # names of Ollama hold a colon themselves
        except ModelFileError:
            wanted, _, asked = name.rpartition(":")
            quantization = asked.upper() if wanted else DEFAULT_QUANTIZATION
            entry = find_entry(wanted or name)
    except ModelFileError as error:
        raise UnknownNameError(f"{unknown} And {error}") from error
    model = entry.model(quantization)
    origin = f"kvchat's catalogue ({entry.source}; {entry.checked})"
    return replace(model, file=replace(model.file, origin=origin))
