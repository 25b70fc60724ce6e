"""The models on this machine: what GGUF files there are, and which one a name means."""

import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import islice
from pathlib import Path
from stat import S_ISREG

from engine.errors import ModelFileError
from engine.files import expanded, file_status
from engine.model.addresses import is_remote
from engine.model.gguf import SPLIT_NAME, part_names, read_gguf, read_part
from engine.model.header_cache import HeaderCache, HeaderFacts
from engine.model.identity import ModelKind, kind_of
from engine.model.ollama import PARTS_OF_A_STORE, stored_models
from engine.model.speeds import ModelSpeed, Speeds
from engine.model.starter import STARTER
from engine.validation import nearest

Progress = Callable[[int, int], None]
Cut = Callable[[Path], None]
"""Told of a folder that holds more than is looked at."""

STARTER_WORD = "starter"
N_NEAR = 5
MOST_PROJECTORS = 16
"""Files of a folder that are looked at for the projector of a model."""
MAX_DEPTH = 8
"""Folders below a scanned one that are entered; a Hugging Face cache needs four."""
MAX_VISITED = 50_000
"""Directory entries looked at below one scanned folder."""

UNFINISHED = re.compile(
    r"(?P<name>.+\.gguf)(\.[0-9a-f]+)?\.(part|incomplete|crdownload|download|downloadInProgress|tmp|!qb)$",
    re.IGNORECASE | re.DOTALL,
)
"""What browsers, LM Studio, Hugging Face's and llama.cpp's downloads call what is not yet whole."""
NOT_FINISHED = "its download is not finished"
ARIA2 = ".aria2"
"""Behind the name of a file that lies beside one that aria2 has not finished."""


class ModelNotFoundError(ModelFileError):
    """A name that means no model, or more than one."""

    title = "No such model"


class UnknownNameError(ModelNotFoundError):
    """A name that no model here has, nor a part of one's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry(HeaderFacts):
    """A GGUF file, or the files that one model is split into, and what its header says."""

    path: Path
    """The file, or the first of the files that it is split into."""
    name: str
    """What `find_model` knows it by: the file name without its ending."""
    nbytes: int
    """Size of all of its files together."""
    speed: ModelSpeed | None = None
    """How fast it runs here, None where that was not measured."""
    copies: tuple[Path, ...] = ()
    """Other files that hold the same model."""


def scan(
    folders: Sequence[Path],
    *,
    cache_path: Path | None = None,
    kinds: Collection[ModelKind] = (ModelKind.MODEL,),
    progress: Progress | None = None,
    speeds: Speeds | None = None,
    cut: Cut | None = None,
) -> list[ModelEntry]:
    """The models below the folders, each once, in the order of the folders and then of their paths.

    Args:
        folders: Where to look; one that does not exist holds nothing.
        cache_path: File that remembers headers by path, size and time, so that a second scan reads
            none; None reads all of them.
        kinds: What to give: only models to talk to where nothing is said. A file that cannot be
            read counts as a model, unless it is called a projector.
        progress: Told how many files of how many were looked at.
        speeds: Knows how fast models run here.
        cut: Told of each folder that holds more than is looked at.
    """
    entries = read_headers(folders, cache_path=cache_path, progress=progress, cut=cut)
    models = [entry for entry in _once(entries) if entry.kind in kinds]
    known = (speeds or Speeds(None)).of_all((entry.identity, entry.name) for entry in models)
    return [replace(entry, speed=speed) for entry, speed in zip(models, known, strict=True)]


def read_headers(
    folders: Sequence[Path],
    *,
    cache_path: Path | None = None,
    progress: Progress | None = None,
    cut: Cut | None = None,
) -> list[ModelEntry]:
    """Every GGUF file below the folders with what its header says; arguments as `scan`."""
    cache = HeaderCache(cache_path)
    files = find_files(folders, cut)
    entries = []
    for number, file in enumerate(files, 1):
        entries.append(_with_header(file, cache))
        if progress is not None:
            progress(number, len(files))
    cache.save()
    return entries


class LibraryScan:
    """Scans folders for models when it is called, and says meanwhile how far it is.

    One call at a time; the counts may be read from another thread.
    """

    def __init__(
        self, folders: Sequence[Path], cache_path: Path | None, speeds: Speeds | None = None
    ) -> None:
        self._folders = folders
        self._cache_path = cache_path
        self._speeds = speeds
        self.n_done = self.n_all = 0
        self.cut: list[Path] = []
        """Folders of the last scan that hold more than was looked at."""

    def __call__(self) -> list[ModelEntry]:
        """The models, as `scan` finds them."""
        self._tell(0, 0)
        self.cut = []
        return scan(
            self._folders,
            cache_path=self._cache_path,
            progress=self._tell,
            speeds=self._speeds,
            cut=self.cut.append,
        )

    def _tell(self, n_done: int, n_all: int) -> None:
        self.n_done, self.n_all = n_done, n_all


def find_model(name_or_path: str | Path, folders: Sequence[Path]) -> Path:
    """The file that a path, a name, an unambiguous part of a name, or `starter` means.

    A whole name that is found twice means the one in the earlier folder.

    Raises:
        ModelNotFoundError: If nothing or more than one model is meant; it names what is near and
            the folders that were searched.
    """
    text = str(name_or_path)
    if is_remote(text):
        raise ModelNotFoundError(
            f"{text} is not on this machine: `kvchat plan` reads its header from there; to "
            "run it, download the file and name its path"
        )
    path = expanded(text)
    if path.is_file():
        return path.absolute()
    if path.is_absolute() or (path.exists() and text.startswith(".")):
        raise _no_file(path)
    files = [file for file in find_files(folders) if _can_be_meant(file)]
    wanted = STARTER.file_name if text.lower() == STARTER_WORD else text
    found = _matches(wanted, files)
    if len(found) == 1:
        return found[0].path
    if text.lower() == STARTER_WORD:
        raise ModelNotFoundError(
            "the starter model is not installed: run `kvchat models install-starter`"
        )
    if not found and path.exists():
        raise _no_file(path)
    raise _not_found(text, found, files, folders)


def _no_file(path: Path) -> ModelNotFoundError:
    if path.is_dir():
        return ModelNotFoundError(f"{path} is a folder: name a GGUF file in it")
    if path.exists():
        return ModelNotFoundError(f"{path} is a pipe or a device: name a GGUF file")
    return ModelNotFoundError(f"{path} does not exist: check the path, or see `kvchat models`")


def find_files(folders: Sequence[Path], cut: Cut | None = None) -> list[ModelEntry]:
    """Each GGUF file below the folders once, by folder and then by path; `cut` as of `scan`."""
    seen_files: set[tuple[int, int]] = set()
    seen_folders: set[tuple[int, int]] = set()
    found: list[ModelEntry] = []
    for folder in folders:
        # Of two ways to one file the shorter one is shown.
        paths = sorted(
            _gguf_files(folder, seen_folders, cut), key=lambda each: (len(each[0].parts), each[0])
        )
        files = (_model(path, seen_files, name) for path, name in paths)
        found += sorted((file for file in files if file), key=lambda file: file.path)
    return found


def is_projector_name(name: str) -> bool:
    """Whether a file is called as the projectors of image models are."""
    return "mmproj" in name.lower()


def projector_beside(model: Path, n_embd: int) -> Path | None:
    """The projector in a model's folder, where exactly one fits; a split model's folder counts too.

    Args:
        model: The model's file.
        n_embd: Width of its embeddings, which a projector's last tensors have.
    """
    try:
        names = sorted(each for each in model.parent.glob("*.gguf") if is_projector_name(each.name))
    except OSError:
        return None
    fitting = [path for path in names[:MOST_PROJECTORS] if path != model and _fits(path, n_embd)]
    return fitting[0] if len(fitting) == 1 else None


def _fits(projector: Path, n_embd: int) -> bool:
    try:
        file = read_gguf(projector)
    except ModelFileError:
        return False
    ends = (tensor.shape for tensor in file.tensors if tensor.name.startswith("mm."))
    sees = file.values.get("clip.has_vision_encoder") is True
    return sees and kind_of(file) is ModelKind.PROJECTOR and any(n_embd in shape for shape in ends)


def _with_header(file: ModelEntry, cache: HeaderCache) -> ModelEntry:
    if file.problem is None:
        facts = cache.facts(file.path, file.nbytes)
        file = replace(file, **{each.name: getattr(facts, each.name) for each in fields(facts)})
    if file.kind is ModelKind.MODEL and is_projector_name(file.path.name):
        return replace(file, kind=ModelKind.PROJECTOR)
    return file


def _can_be_meant(file: ModelEntry) -> bool:
    return file.problem != NOT_FINISHED and not is_projector_name(file.name)


def _matches(wanted: str, files: Sequence[ModelEntry]) -> list[ModelEntry]:
    """The files that a name means: whole names before parts of names."""
    plain = _plain(wanted.removesuffix(".gguf"))
    whole = [file for file in files if _plain(file.name) == plain]
    if whole:
        return whole[:1]
    return [file for file in files if plain and plain in _plain(file.name)]


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def _not_found(
    text: str,
    found: Sequence[ModelEntry],
    files: Sequence[ModelEntry],
    folders: Sequence[Path],
) -> ModelNotFoundError:
    if found:
        names = ", ".join(file.name for file in found)
        return ModelNotFoundError(
            f"{text!r} is part of {len(found)} names, write more of one: {names}"
        )
    names = _near(text, sorted({file.name for file in files}))
    searched = ", ".join(str(folder) for folder in folders if folder.is_dir())
    return UnknownNameError(
        f"no file or model is called {text!r}: {names} Searched: "
        f"{searched or 'no folder, as none that `kvchat where` lists exists'}."
    )


def _near(text: str, names: Sequence[str]) -> str:
    by_plain = {_plain(name): name for name in names}
    near = nearest(_plain(text), by_plain, n=N_NEAR, cutoff=0.4)
    if near:
        return f"similar: {', '.join(by_plain[key] for key in near)}."
    if names:
        return f"there are {', '.join(names[:N_NEAR])}, see `kvchat models`."
    return "no model was found; `kvchat models install-starter` downloads a small one."


def _once(entries: Sequence[ModelEntry]) -> list[ModelEntry]:
    """The entries with copies of one model as one: the first, which names the others."""
    first: dict[tuple[object, ModelKind], ModelEntry] = {}
    for entry in entries:
        key = entry.identity or entry.path, entry.kind
        known = first.get(key)
        first[key] = replace(known, copies=(*known.copies, entry.path)) if known else entry
    return list(first.values())


def _gguf_files(
    root: Path, seen: set[tuple[int, int]], cut: Cut | None = None
) -> Iterator[tuple[Path, str | None]]:
    """GGUF files below a folder, with what a manifest calls them if one does.

    Links are followed, each folder is entered once.
    """
    waiting = deque([(root, 0)])  # what lies near comes before what may be too much
    n_left = MAX_VISITED
    while waiting:
        folder, depth = waiting.popleft()
        entries = _entries(folder, seen, n_left + 1)
        n_left -= len(entries)
        if n_left < 0:
            if cut is not None:
                cut(root)
            return
        if {entry.name for entry in entries} >= PARTS_OF_A_STORE:
            yield from stored_models(folder)
            continue
        for entry in entries:
            path = Path(entry.path)
            if _is_model_name(entry.name):
                if _holds(entry.is_file):
                    yield path, None
            elif depth < MAX_DEPTH and not entry.name.startswith(".") and _holds(entry.is_dir):
                waiting.append((path, depth + 1))


def _holds(ask: Callable[[], bool]) -> bool:
    """What an entry says of itself; False where it cannot be looked at, as a link in a circle."""
    try:
        return ask()
    except OSError:
        return False


def _entries(folder: Path, seen: set[tuple[int, int]], n_most: int) -> "Sequence[os.DirEntry[str]]":
    """What lies in a folder; nothing of one that was seen, or is gone, or is not ours to read."""
    try:
        identity = _identity(folder)
        if identity in seen or identity[0] in _of_the_kernel():
            return ()
        seen.add(identity)
        with os.scandir(folder) as found:
            return list(islice(found, n_most))
    except OSError:
        return ()


@cache
def _of_the_kernel() -> frozenset[int]:
    """The file systems in which the kernel shows itself: they hold no models, and have no end."""
    places = (path for path in map(Path, ("/proc", "/sys", "/dev")) if path.is_dir())
    return frozenset(_identity(path)[0] for path in places) - {_identity(Path("/"))[0]}


def _is_model_name(name: str) -> bool:
    """Whether it is called a model, or the beginning of one."""
    if name.startswith("."):
        return False
    return name.lower().endswith(".gguf") or UNFINISHED.match(name) is not None


def _model(path: Path, seen: set[tuple[int, int]], name: str | None = None) -> ModelEntry | None:
    """Describe the model at a path; None for later shards and for a file that was seen already."""
    try:
        identity = _identity(path)
        shard = SPLIT_NAME.match(path.name)
        if shard is not None and not _is_part(path, shard):
            shard = None
        if identity in seen or (shard is not None and int(shard["number"]) != 1):
            return None
        seen.add(identity)
        if name is not None:
            return _file(path, name, path.stat().st_size)
        unfinished = UNFINISHED.match(path.name)
        if unfinished is not None:
            name = unfinished["name"].removesuffix(".gguf")
            return _file(path, name, path.stat().st_size, NOT_FINISHED)
        if path.with_name(f"{path.name}{ARIA2}").exists():
            return _file(path, path.stem, path.stat().st_size, NOT_FINISHED)
        if shard is None:
            return _file(path, path.stem, path.stat().st_size)
    except OSError as error:
        return _file(path, path.stem, 0, f"it cannot be read: {error.strerror}")
    return _split_model(path, shard["stem"], int(shard["count"]))


def _is_part(path: Path, shard: re.Match[str]) -> bool:
    """Whether a file that is called a part is one; its header is asked where others are missing."""
    count = int(shard["count"])
    other = 2 if int(shard["number"]) == 1 else 1
    name = f"{shard['stem']}-{other:05}-of-{count:05}.gguf"
    if other > count or path.with_name(name).is_file():
        return True
    try:
        return bool(part_names(read_part(path)))
    except ModelFileError:
        return True


def _split_model(first: Path, stem: str, total: int) -> ModelEntry:
    parts = [first.with_name(f"{stem}-{n:05}-of-{total:05}.gguf") for n in range(1, total + 1)]
    sizes = [nbytes for part in parts if (nbytes := _size(part)) is not None]
    n_missing = total - len(sizes)
    problem = f"{n_missing} of its {total} files are missing" if n_missing else None
    return _file(first, stem, sum(sizes), problem)


def _size(path: Path) -> int | None:
    """The bytes of a file; None where there is none, or no longer."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if S_ISREG(status.st_mode) else None


def _file(path: Path, name: str, nbytes: int, problem: str | None = None) -> ModelEntry:
    return ModelEntry(path=path, name=name, nbytes=nbytes, problem=problem)


def _identity(path: Path) -> tuple[int, int]:
    status = file_status(path)
    return status.st_dev, status.st_ino
