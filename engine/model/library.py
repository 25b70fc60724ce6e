"""The models on this machine: the GGUF files, the facts of their headers, and names."""

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path

from engine.errors import ModelFileError
from engine.files import NewestEntries, exists, expanded, file_status, is_file, reason_of
from engine.model.gguf import SPLIT_NAME, names_of_parts, part_names, read_gguf, read_part
from engine.model.identity import (
    ModelKind,
    identity_of,
    is_projector_name,
    kind_of,
    not_a_file,
)
from engine.model.ollama import STORE_FOLDERS, stored_models
from engine.model.remote import is_remote
from engine.model.speeds import ModelSpeed, Speeds
from engine.model.starter import STARTER
from engine.model.tensor_table import TokenReads, token_reads
from engine.model.vocabulary import VocabularyFacts, vocabulary_facts
from engine.validation import nearest

Progress = Callable[[int, int], None]  # called with the number of read headers and of all files
Cut = Callable[[Path], None]  # called with a folder that has more entries than `MAX_VISITED`

STARTER_WORD = "starter"
N_NEAR = 5
MAX_PROJECTORS = 16  # files of a folder that are tried as the projector of a model
MAX_DEPTH = 8  # folders below a scanned one; a Hugging Face cache needs four
MAX_VISITED = 50_000  # directory entries read below one scanned folder
VERSION = 7  # of the cache file
MAX_MODELS = 10_000  # about 5 MB, which `NewestEntries` still reads
UNFINISHED = re.compile(
    r"(?P<name>.+\.gguf)(\.[0-9a-f]+)?\.(part|incomplete|crdownload|download|downloadInProgress|tmp|!qb)$",
    re.IGNORECASE | re.DOTALL,
)
"""Names of unfinished downloads of browsers, LM Studio, Hugging Face and llama.cpp."""
NOT_FINISHED = "its download is not finished"


class ModelNotFoundError(ModelFileError):
    """A name with no or several matching models."""

    title = "No such model"


class UnknownNameError(ModelNotFoundError):
    """A name that matches no model on this machine."""


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """The part of a header that a list of models shows; much of it is None with a problem."""

    architecture: str | None = None
    file_type: str | None = None
    n_ctx_train: int | None = None
    kind: ModelKind = ModelKind.MODEL
    identity: str | None = None  # the same for every copy of a model: see `engine.model.identity`
    problem: str | None = None
    vocabulary: VocabularyFacts | None = None
    reads: TokenReads | None = None

    @property
    def is_valid(self) -> bool:
        is_share = self.reads is None or 0 <= self.reads.expert_share <= 1
        return self.identity is not None and is_share


def read_facts(model: Path) -> HeaderFacts:
    """The facts of a model's header, or its problem."""
    try:
        header = read_gguf(model)
        identity = identity_of(header)
    except ModelFileError as error:
        return HeaderFacts(problem=str(error))
    architecture, kind = header.architecture, kind_of(header)
    problem = None
    if not architecture and kind is ModelKind.MODEL:
        problem = "it is not a language model: its header has no architecture"
    elif not header.tensors and kind is not ModelKind.VOCABULARY:
        problem = "it has no weights"
    return HeaderFacts(
        architecture=architecture or None,
        file_type=header.file_type,
        n_ctx_train=header.integer(f"{architecture}.context_length"),
        kind=kind,
        identity=identity,
        problem=problem,
        vocabulary=None if problem else vocabulary_facts(header),
        reads=None if problem else token_reads(header),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry(HeaderFacts):
    """A GGUF file, or the files of a split model, with the facts of its header."""

    path: Path  # the file, or the first part
    name: str  # the file name without its suffix, or its name in Ollama's store
    nbytes: int  # size of all files
    speed: ModelSpeed | None = None  # its measured speed here
    copies: tuple[Path, ...] = ()  # other files with the same model


def scan(
    folders: Sequence[Path],
    *,
    cache_path: Path | None = None,
    kinds: Collection[ModelKind] = (ModelKind.MODEL,),
    progress: Progress = lambda *_: None,
    speeds: Speeds | None = None,
    cut: Cut = lambda _: None,
) -> list[ModelEntry]:
    """The models below the folders, each once, by folder and then by path.

    An unreadable file counts as a model, unless it has the name of a projector. `cut` receives
    each folder that was not read to its end; without `cache_path` every header is read.
    """
    entries = read_headers(folders, cache_path=cache_path, progress=progress, cut=cut)
    first: dict[tuple[object, ModelKind], ModelEntry] = {}
    for entry in entries:
        key = entry.identity or entry.path, entry.kind
        known = first.get(key)
        first[key] = replace(known, copies=(*known.copies, entry.path)) if known else entry
    models = [entry for entry in first.values() if entry.kind in kinds]
    measured = (speeds or Speeds(None)).of_all((entry.identity, entry.name) for entry in models)
    return [replace(entry, speed=speed) for entry, speed in zip(models, measured, strict=True)]


def read_headers(
    folders: Sequence[Path],
    *,
    cache_path: Path | None = None,
    progress: Progress = lambda *_: None,
    cut: Cut = lambda _: None,
) -> list[ModelEntry]:
    """Every GGUF file below the folders with the facts of its header; arguments as `scan`."""
    cache = NewestEntries(cache_path, "models", VERSION, MAX_MODELS, HeaderFacts)
    known, used = cache.read(), dict[str, HeaderFacts]()
    files, entries = find_files(folders, cut), []
    for number, entry in enumerate(files, 1):
        facts: HeaderFacts = entry
        if entry.problem is None:
            stamp = _stamp(entry)
            found = known.get(stamp)
            facts = found if found is not None and found.is_valid else read_facts(entry.path)
            if facts.identity is not None:  # an unreadable file may be readable the next time
                used[stamp] = facts
        read = {each.name: getattr(facts, each.name) for each in fields(HeaderFacts)}
        if facts.kind is ModelKind.MODEL and is_projector_name(entry.path.name):
            read["kind"] = ModelKind.PROJECTOR
        entries.append(replace(entry, **read))
        progress(number, len(files))
    if any(known.get(stamp) != facts for stamp, facts in used.items()):
        others = {stamp: facts for stamp, facts in known.items() if stamp not in used}
        with contextlib.suppress(OSError):
            cache.write({**others, **used})
    return entries


def _stamp(entry: ModelEntry) -> str:
    """Size, time, device and inode of a model, by which its facts are cached."""
    try:
        status = entry.path.stat()
    except OSError:
        return ""  # `read_facts` gives the reason
    return f"{entry.nbytes} {status.st_mtime_ns} {status.st_dev} {status.st_ino}"


@dataclass
class LibraryScan:
    """Scans folders when it is called; another thread may read the progress meanwhile."""

    folders: Sequence[Path]
    cache_path: Path | None
    speeds: Speeds | None = None
    n_done: int = 0
    n_all: int = 0
    cut: list[Path] = field(default_factory=list)  # folders that were not read to their end

    def __call__(self) -> list[ModelEntry]:
        self._note(0, 0)
        self.cut = []
        return scan(
            self.folders,
            cache_path=self.cache_path,
            progress=self._note,
            speeds=self.speeds,
            cut=self.cut.append,
        )

    def _note(self, n_done: int, n_all: int) -> None:
        self.n_done, self.n_all = n_done, n_all


def find_model(name_or_path: str | Path, folders: Sequence[Path]) -> Path:
    """Find a model by path, name, unambiguous part of a name, or `starter`.

    Of equal names the one in the earlier folder wins. Raises `ModelNotFoundError` for none and for
    several, with similar names and the searched folders.
    """
    text = str(name_or_path)
    if is_remote(text):
        raise ModelNotFoundError(
            f"{text} is not on this machine: `kvchat plan` can read its header over the "
            "network; to run the model, download the file and pass its path"
        )
    path, is_starter = expanded(text), text.lower() == STARTER_WORD
    if is_file(path):
        return path.absolute()
    if path.is_absolute() or (exists(path) and text.startswith(".")):
        raise ModelNotFoundError(f"{path} {not_a_file(path)}")
    files = [
        file
        for file in find_files(folders)
        if file.problem != NOT_FINISHED and not is_projector_name(file.name)
    ]
    found = _matches(STARTER.file_name if is_starter else text, files)
    if len(found) == 1:
        return found[0].path
    if is_starter:
        raise ModelNotFoundError(
            "the starter model is not installed: run `kvchat models install-starter`"
        )
    if not found and exists(path):
        raise ModelNotFoundError(f"{path} {not_a_file(path)}")
    raise _not_found(text, found, files, folders)


def find_files(folders: Sequence[Path], cut: Cut = lambda _: None) -> list[ModelEntry]:
    """Each GGUF file below the folders once, by folder and then by path; `cut` as of `scan`."""
    seen_files: set[tuple[int, int]] = set()
    seen_folders: set[tuple[int, int]] = set()
    found: list[ModelEntry] = []
    for folder in folders:
        # Of two paths to one file the shorter one is used.
        paths = sorted(
            _gguf_files(folder, seen_folders, cut), key=lambda each: (len(each[0].parts), each[0])
        )
        files = (_model(path, seen_files, name) for path, name in paths)
        found += sorted((file for file in files if file), key=lambda file: file.path)
    return found


def projector_beside(model: Path, n_embd: int) -> Path | None:
    """The only projector in a model's folder that fits embeddings of `n_embd` elements."""
    try:
        paths = sorted(each for each in model.parent.glob("*.gguf") if is_projector_name(each.name))
    except OSError:
        return None
    fitting = [path for path in paths[:MAX_PROJECTORS] if path != model and _fits(path, n_embd)]
    return fitting[0] if len(fitting) == 1 else None


def _fits(projector: Path, n_embd: int) -> bool:
    try:
        file = read_gguf(projector)
    except ModelFileError:
        return False
    ends = (tensor.shape for tensor in file.tensors if tensor.name.startswith("mm."))
    sees = file.values.get("clip.has_vision_encoder") is True
    return sees and kind_of(file) is ModelKind.PROJECTOR and any(n_embd in shape for shape in ends)


def _matches(wanted: str, files: Sequence[ModelEntry]) -> list[ModelEntry]:
    """The first file of that name, else all that have it in their name."""
    plain = _plain(wanted.removesuffix(".gguf"))
    equal = [file for file in files if _plain(file.name) == plain]
    return equal[:1] or [file for file in files if plain and plain in _plain(file.name)]


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def _not_found(
    text: str, found: Sequence[ModelEntry], files: Sequence[ModelEntry], folders: Sequence[Path]
) -> ModelNotFoundError:
    if found:
        names = ", ".join(file.name for file in found)
        return ModelNotFoundError(
            f"{text!r} matches {len(found)} models; type more of the name: {names}"
        )
    from engine.model.catalog import entries_by_name  # slow to read, and seldom needed

    by_plain = {_plain(file.name): file.name for file in sorted(files, key=lambda each: each.name)}
    near = nearest(_plain(text), by_plain, n=N_NEAR, cutoff=0.4)
    hint = "this machine has no model; `kvchat models install-starter` downloads a small one."
    if text.lower() in entries_by_name():
        hint = f"`kvchat models get {text}` downloads it."
    elif near:
        hint = f"similar: {', '.join(by_plain[key] for key in near)}."
    elif by_plain:
        hint = f"for example {', '.join([*by_plain.values()][:N_NEAR])}; `kvchat models` lists all."
    searched = ", ".join(str(folder) for folder in folders if folder.is_dir())
    return UnknownNameError(
        f"no file or model is called {text!r}: {hint} Searched folders: "
        f"{searched or 'none, because none of the folders in `kvchat where` exists'}."
    )


def _gguf_files(
    root: Path, seen: set[tuple[int, int]], cut: Cut
) -> Iterator[tuple[Path, str | None]]:
    """GGUF files below a folder with their names in a manifest; each folder is read once."""
    waiting = deque([(root, 0)])  # near folders come before what may be too much
    n_left = MAX_VISITED
    while waiting:
        folder, depth = waiting.popleft()
        entries = _entries(folder, seen, n_left + 1)
        n_left -= len(entries)
        if n_left < 0:
            cut(root)
            return
        if {entry.name for entry in entries} >= STORE_FOLDERS:
            yield from stored_models(folder)
            continue
        for entry in entries:
            is_hidden = entry.name.startswith(".")
            is_model = entry.name.lower().endswith(".gguf") or UNFINISHED.match(entry.name)
            with contextlib.suppress(OSError):  # such as a link in a circle
                if is_model and not is_hidden and entry.is_file():
                    yield Path(entry.path), None
                elif not is_model and not is_hidden and depth < MAX_DEPTH and entry.is_dir():
                    waiting.append((Path(entry.path), depth + 1))


def _entries(folder: Path, seen: set[tuple[int, int]], limit: int) -> "Sequence[os.DirEntry[str]]":
    """The entries of a folder; empty for one that was seen, is gone, or may not be read."""
    try:
        status = file_status(folder)
        inode = status.st_dev, status.st_ino
        if inode in seen:
            return ()
        seen.add(inode)
        with os.scandir(folder) as found:
            return list(islice(found, limit))
    except OSError:
        return ()


def _model(path: Path, seen: set[tuple[int, int]], name: str | None) -> ModelEntry | None:
    """The entry of a file; None for later parts and for a file that was seen already."""
    try:
        status = file_status(path)
        inode = status.st_dev, status.st_ino
        split = None if name else SPLIT_NAME.match(path.name)
        split = split if split and _is_part(path, split) else None
        if inode in seen or (split and int(split["number"]) != 1):
            return None
        seen.add(inode)
        paths = [path.with_name(each) for each in names_of_parts(split)] if split else [path]
        sizes = [each.stat().st_size for each in paths if is_file(each)]
    except OSError as error:
        why = f"it cannot be read: {reason_of(error)}"
        return ModelEntry(path=path, name=path.stem, nbytes=0, problem=why)
    unfinished = UNFINISHED.match(path.name)
    problem = NOT_FINISHED if unfinished else None
    if len(sizes) < len(paths):
        problem = f"{len(paths) - len(sizes)} of its {len(paths)} files are missing"
    stem = unfinished["name"].removesuffix(".gguf") if unfinished else path.stem
    return ModelEntry(
        path=path,
        name=name or (split["stem"] if split else stem),
        nbytes=sum(sizes),
        problem=problem,
    )


def _is_part(path: Path, split: re.Match[str]) -> bool:
    """Whether a file named like a part is one: another part exists, or its header names it."""
    others = [path.with_name(name) for name in names_of_parts(split)[:2] if name != path.name]
    if not others or any(map(is_file, others)):
        return True
    try:
        return bool(part_names(read_part(path)))
    except ModelFileError:
        return True
