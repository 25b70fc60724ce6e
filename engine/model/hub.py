"""Models of the Hugging Face hub: repositories by name, their files, and downloads that go on.

A download is kept beside its place under the name with `.part` behind it; what is there is not
asked for again. The library `huggingface_hub` (2.4) asks, goes on where a connection ended, and
follows the hub to where its files lie.
"""

import errno
import hashlib
import re
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from engine.clock import in_time
from engine.errors import EngineError
from engine.files import sync_folder
from engine.model.addresses import DEFAULT_REVISION, HF_NAME, HF_PREFIX, endpoint, hub_token
from engine.model.gguf import SPLIT_NAME
from engine.model.library import is_projector_name

if TYPE_CHECKING:
    from httpx2 import Client, Response
    from huggingface_hub import HfApi

REPOSITORY = re.compile(
    r"^(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?(:(?P<quantization>[\w.-]+))?$"
)
MAX_FILES = 5_000
MAX_REPOSITORIES = 30
LISTING_S = 60.0
"""How long a listing may take, from the first request to the last byte."""
PAGE_BYTES = 8 << 20
"""Most bytes of a page of a listing: the hub sends a thousand files, half a megabyte, at once."""
SLOW_S, SLOW_BYTES = 60.0, 64 << 10
"""A download of which less than so many bytes came in so many seconds is ended."""
MOST_RESTARTS = 3
"""How often a server may begin a file again that was asked for from the middle."""
SHA256 = re.compile(r"[0-9a-f]{64}")
SPARE_BYTES = 256 << 20
"""Room that a download leaves on the disk."""
GB = 1_000_000_000
MOST_BYTES = 1 << 60
"""The largest size of a file that is believed."""
CHUNK_BYTES = 1 << 20
"""Between two steps of the progress, at which a download can be stopped."""
PART_SUFFIX = ".part"

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are there."""


class DownloadError(EngineError):
    """A repository or a file of the hub that cannot be had."""

    title = "Hugging Face hub"


class StoppedError(DownloadError):
    """A download that its user stopped; what came is kept."""

    title = "The download was stopped"


@dataclass(frozen=True, slots=True)
class HubPart:
    """One file of a repository."""

    path: str
    nbytes: int
    sha256: str | None
    """None for what the hub keeps without one."""
    has_namesake: bool = False
    """Whether another file of the repository has its name, in another folder."""

    @property
    def file_name(self) -> str:
        """Its name on this machine: with its folders where another file has the same."""
        path = PurePosixPath(self.path)
        return "-".join(path.parts) if self.has_namesake else path.name


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of a repository: one GGUF file, or those that it is split into."""

    repo: str
    revision: str
    parts: tuple[HubPart, ...]

    @property
    def name(self) -> str:
        """The file name without its ending, and without what numbers its parts."""
        name = self.parts[0].file_name
        split = SPLIT_NAME.match(name)
        return split["stem"] if split else name[: -len(".gguf")]

    @property
    def nbytes(self) -> int:
        """Size of all of its files."""
        return sum(part.nbytes for part in self.parts)

    @property
    def address(self) -> str:
        """The name by which its header is read: `hf:owner/repository/file.gguf`."""
        at = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{HF_PREFIX}{self.repo}/{self.parts[0].path}{at}"

    def place(self, folder: Path) -> Path:
        """Where its first file goes below a folder of models."""
        return folder / self.repo / self.parts[0].file_name

    @property
    def is_checked(self) -> bool:
        """Whether the hub names a checksum of each of its files."""
        return all(part.sha256 is not None for part in self.parts)


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A repository that a search found."""

    name: str
    n_downloads: int
    """Of the last month, as the hub counts them."""


@dataclass(frozen=True, slots=True)
class RepositoryName:
    """A repository as it is typed: `hf:owner/repository`, with `@revision` and `:Q4_K_M`."""

    repo: str
    revision: str = DEFAULT_REVISION
    quantization: str | None = None


def parse_repository(name: str) -> RepositoryName | None:
    """The repository that a name means, None where it means a file, a path or a model."""
    if not name.lower().startswith(HF_PREFIX):
        return None
    match = REPOSITORY.match(name[len(HF_PREFIX) :].removeprefix("//"))
    if match is None or match["repo"].lower().endswith(".gguf"):
        return None
    return RepositoryName(
        match["repo"], match["revision"] or DEFAULT_REVISION, match["quantization"]
    )


def file_repository(name: str) -> tuple[RepositoryName, str] | None:
    """Repository and file of `hf:owner/repository/file.gguf`; None for any other name."""
    match = HF_NAME.match(name[len(HF_PREFIX) :].removeprefix("//"))
    if not name.lower().startswith(HF_PREFIX) or match is None:
        return None
    repo = f"{match['owner']}/{match['repo']}"
    file = PurePosixPath(match["file"]).name
    split = SPLIT_NAME.match(file)
    return RepositoryName(repo, match["rev"] or DEFAULT_REVISION), split["stem"] if split else file


def repository_models(repo: str, revision: str = DEFAULT_REVISION) -> list[HubModel]:
    """The models of a repository, the smallest first; projectors are left out.

    Raises:
        DownloadError: it is not there, may not be read, or holds no GGUF file.
    """
    models = [each for each in _listed(repo, revision) if not is_projector_name(each.name)]
    if not models:
        raise DownloadError(f"{repo} has no GGUF model: name a repository that has one")
    return models


def repository_projectors(repo: str, revision: str = DEFAULT_REVISION) -> list[HubModel]:
    """The projectors of a repository, the smallest first; raises as `repository_models` does."""
    return [each for each in _listed(repo, revision) if is_projector_name(each.name)]


def _listed(repo: str, revision: str) -> list[HubModel]:
    """The whole files of a repository, the smallest first."""
    with _translated(repo):
        files = in_time(lambda: _files(repo, revision), LISTING_S)
    groups: dict[str, list[HubPart]] = defaultdict(list)
    unique = {part.path: part for part in files if part is not None}
    names = Counter(PurePosixPath(path).name.lower() for path in unique)
    for part in unique.values():
        name = PurePosixPath(part.path)
        split = SPLIT_NAME.match(name.name)
        key = str(name.with_name(f"{split['stem']}-{split['count']}")) if split else part.path
        groups[key].append(replace(part, has_namesake=names[name.name.lower()] > 1))
    models = [
        HubModel(repo, revision, tuple(sorted(parts, key=lambda part: part.path)))
        for parts in groups.values()
        if _is_whole(parts)
    ]
    return sorted(models, key=lambda model: model.nbytes)


def find_repositories(words: str, maker: str = "") -> list[HubRepository]:
    """Repositories with GGUF files whose name holds the words: the maker's, then the most used.

    Raises:
        DownloadError: the hub does not answer.
    """
    with _translated(words):
        found = in_time(lambda: _repositories(words), LISTING_S)
    is_other = {each.name: not each.name.lower().startswith(f"{maker.lower()}/") for each in found}
    return sorted(found, key=lambda each: (bool(maker) and is_other[each.name], -each.n_downloads))


def _files(repo: str, revision: str) -> list[HubPart | None]:
    with _bounded_pages():
        tree = _api().list_repo_tree(repo, recursive=True, revision=revision)
        return [_part(item) for item in islice(tree, MAX_FILES)]


def _repositories(words: str) -> list[HubRepository]:
    listed = _api().list_models(
        search=words, filter="gguf", sort="downloads", limit=MAX_REPOSITORIES
    )
    with _bounded_pages():
        models = list(islice(listed, MAX_REPOSITORIES))
    told = ((model.id, model.downloads or 0) for model in models)
    return [
        HubRepository(name, n_downloads)
        for name, n_downloads in told
        if isinstance(name, str) and isinstance(n_downloads, int)
    ]


def download(model: HubModel, folder: Path, progress: Progress) -> Path:
    """Put a model below a folder, verified, and return the path of its first file.

    Args:
        model: What to fetch.
        folder: Of models; the files go into `owner/repository` there.
        progress: Told what is there; what it raises ends the download, and what came is kept.

    Raises:
        StoppedError: `progress` raised it.
        DownloadError: the hub, the connection, the disk or a checksum says no; the message says
            whether the next try goes on from there.
    """
    first = model.place(folder)
    n_before = 0
    with _translated(model.name, first.parent):
        first.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_space(model, first.parent)
        for part in model.parts:
            target = first.with_name(part.file_name)
            if not (target.is_file() and target.stat().st_size == part.nbytes):
                _fetch(model, part, target, partial(_tell_more, progress, n_before, model.nbytes))
            n_before += part.nbytes
        progress(n_before, model.nbytes)
        sync_folder(first.parent)
    return first


def _tell_more(progress: Progress, n_before: int, n_all: int, n_more: int) -> None:
    progress(n_before + n_more, n_all)


def _fetch(model: HubModel, part: HubPart, target: Path, tell: Callable[[int], None]) -> None:
    """One file, from where an earlier try ended."""
    from httpx2 import ReadError
    from huggingface_hub import constants, hf_hub_url

    constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES
    watch_answers()
    if part.sha256 is not None and not SHA256.fullmatch(part.sha256):
        raise DownloadError(
            f"the hub names {part.sha256[:40]!r} as the checksum of {target.name}, which is "
            "not a checksum: the file is not downloaded because it could not be verified"
        )
    draft = target.with_name(f"{target.name}{PART_SUFFIX}")
    url = hf_hub_url(model.repo, part.path, revision=model.revision, endpoint=endpoint())
    draft.touch(mode=0o600)
    with draft.open("r+b") as file:
        try:
            _receive(url, file, part, tell)
        except ReadError:
            # The library closes the client that all threads share when one of them cannot connect.
            _receive(url, file, part, tell)
    if part.sha256 is not None and _sha256(draft) != part.sha256:
        draft.unlink()
        raise DownloadError(
            f"{target.name} has another checksum than the hub names: the download was deleted "
            "and nothing was installed; try again"
        )
    draft.replace(target)


def _receive(url: str, file: BinaryIO, part: HubPart, tell: Callable[[int], None]) -> None:
    """Append the missing bytes of a part to its file."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented

    n_there = file.seek(0, 2)
    if n_there > part.nbytes:
        n_there = file.truncate(0)
        file.seek(0)
    try:
        http_get(
            url,
            file,
            resume_size=n_there,
            headers=build_hf_headers(token=hub_token() or False),
            expected_size=part.nbytes,
            tqdm_class=_bar(part, tell),
        )
    except _TooLongError:
        file.truncate(0)  # none of it can be trusted
        raise


class _TooLongError(DownloadError):
    """More comes than was announced."""


def _bar(part: HubPart, tell: Callable[[int], None]) -> Any:
    """A class that takes the place of tqdm's bars: it tells how many bytes are there.

    It ends what goes on beyond the size that the hub named, and what begins again and again.
    """

    class Bar:
        def __init__(self, *, initial: int = 0, **_: object) -> None:
            self._n = initial
            self._n_restarts = 0

        def update(self, n: int) -> None:
            self._n += n
            self._n_restarts += n < 0
            if self._n > part.nbytes:
                raise _TooLongError(
                    f"{part.file_name} does not end after the {part.nbytes:,} bytes that "
                    "the hub named: the download was deleted; try again, or another mirror "
                    "(HF_ENDPOINT)"
                )
            if self._n_restarts > MOST_RESTARTS:
                raise DownloadError(
                    f"the connection ended {self._n_restarts} times within {part.file_name}, "
                    "and the server cannot resume: try another mirror (HF_ENDPOINT), or another "
                    "program"
                )
            tell(self._n)

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    return Bar


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _part(item: object) -> HubPart | None:
    """A GGUF file of a listing; None for all else."""
    path, size = getattr(item, "path", None), getattr(item, "size", None)
    if not isinstance(path, str) or not isinstance(size, int) or not path.isprintable():
        return None
    if not path.lower().endswith(".gguf") or not 0 < size <= MOST_BYTES:
        return None
    lfs = getattr(item, "lfs", None)
    digest = getattr(lfs, "sha256", None)
    return HubPart(path, size, None if digest is None else str(digest).lower())


def _is_whole(parts: Sequence[HubPart]) -> bool:
    """Whether a model is one file, or every part of a split one."""
    split = [SPLIT_NAME.match(PurePosixPath(part.path).name) for part in parts]
    numbers = {int(match["number"]) for match in split if match}
    first = split[0]
    return first is None or numbers == set(range(1, int(first["count"]) + 1))


def _require_space(model: HubModel, folder: Path) -> None:
    there = 0
    for part in model.parts:
        target = folder / part.file_name
        for path in (target, target.with_name(f"{target.name}{PART_SUFFIX}")):
            there += path.stat().st_size if path.is_file() else 0
    needed = model.nbytes - there + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{folder} has {free / GB:.1f} GB free, {model.name} needs {needed / GB:.1f} GB: free "
            "some space, or take a smaller file"
        )


@cache
def _api_of(url: str) -> "HfApi":
    from huggingface_hub import HfApi
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # its warnings would land in the middle of a screen
    return HfApi(endpoint=url, token=False)


def _api() -> "HfApi":
    api = _api_of(endpoint())
    api.token = hub_token() or False
    watch_answers()
    return api


_PAGE_LIMIT: ContextVar[int | None] = ContextVar("page_limit", default=None)
"""Most bytes of an answer that is kept in memory; None for one that is written to a file."""


@contextmanager
def _bounded_pages() -> Iterator[None]:
    """Pages of a listing that are read in the block end at `PAGE_BYTES`."""
    token = _PAGE_LIMIT.set(PAGE_BYTES)
    try:
        yield
    finally:
        _PAGE_LIMIT.reset(token)


@cache
def watch_answers() -> None:
    """Have each answer that the library gets pass `_watched`, whichever client gets it."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def client() -> "Client":
        found = default_client_factory()
        found.event_hooks = {**found.event_hooks, "response": [_watched]}
        return found

    set_client_factory(client)


def _watched(answer: "Response") -> None:
    """Bound an answer before the library reads it: a page in bytes, a file by its speed.

    Raises:
        DownloadError: a page, or the body of a redirection, is longer than any.
    """
    limit = _PAGE_LIMIT.get()
    if answer.has_redirect_location:
        _read_within(answer, PAGE_BYTES, "redirection", "it is not followed")
    elif limit is not None:
        advice = "it is not read; name one file, as hf:owner/repository/file.gguf"
        _read_within(answer, limit, "list of files", advice)
    else:
        _watch_speed(answer)


def _read_within(answer: "Response", limit: int, name: str, then: str) -> None:
    """Read an answer whole, and refuse it beyond `limit` bytes."""
    page = bytearray()
    for chunk in answer.iter_bytes():
        page += chunk
        if len(page) > limit:
            answer.close()
            raise DownloadError(f"the hub's {name} exceeds {limit:,} bytes: {then}")
    answer._content = bytes(page)


def _watch_speed(answer: "Response") -> None:
    """Have what comes of a file end where it hardly moves."""
    from httpx2 import ReadError, RemoteProtocolError, SyncByteStream

    whole = answer.stream

    class Watched(SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            try:
                yield from self._in_time()
            except ReadError as error:  # the library goes on after an end, and not after a reset
                raise RemoteProtocolError(str(error)) from error

        def _in_time(self) -> Iterator[bytes]:
            begun, n_come = time.monotonic(), 0
            for chunk in whole:  # type: ignore[union-attr]  # a client that waits has this kind
                n_come += len(chunk)
                yield chunk
                if time.monotonic() - begun > SLOW_S:
                    if n_come < SLOW_BYTES:
                        raise DownloadError(
                            f"{n_come:,} bytes came in {SLOW_S:.0f} s: the download "
                            "was stopped; the next try resumes"
                        )
                    begun, n_come = time.monotonic(), 0

        def close(self) -> None:
            whole.close()  # type: ignore[union-attr]  # the same

    answer.stream = Watched()


@contextmanager
def _translated(what: str, folder: Path | None = None) -> Iterator[None]:
    """Errors of the library, the network and the disk as those of downloads."""
    try:
        yield
    except EngineError:
        raise
    except OSError as error:
        raise _of_os(what, folder, error) from error
    except Exception as error:
        raise DownloadError(f"{what}: {_short(error)}{_goes_on(folder)}") from error


def _of_os(what: str, folder: Path | None, error: OSError) -> DownloadError:
    from huggingface_hub.errors import (
        GatedRepoError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    if isinstance(error, OfflineModeIsEnabled):
        return DownloadError(f"{what} is not requested while HF_HUB_OFFLINE is set: unset it")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"the disk of {folder} is full: free some space and try again; the download of "
            f"{what} resumes"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return DownloadError(f"{folder} cannot be written ({error.strerror}): name another one")
    if isinstance(error, GatedRepoError):
        return DownloadError(
            f"{what} is gated: accept its terms on the hub and set HF_TOKEN to your token"
        )
    if isinstance(error, RepositoryNotFoundError):
        return DownloadError(
            f"the hub has no readable repository {what}: check its name, or set HF_TOKEN if "
            "it is private"
        )
    return DownloadError(f"{what}: {_short(error)}{_goes_on(folder)}")


def _goes_on(folder: Path | None) -> str:
    return "; the next try resumes" if folder is not None else ": try again later"


def _short(error: Exception) -> str:
    from httpx2 import ConnectError

    lines = re.sub(r"^\[Errno -?\d+\] ", "", str(error).strip()).splitlines()
    text = lines[0][:200].rstrip(".") if lines else repr(error)
    return f"no connection to {endpoint()} ({text})" if isinstance(error, ConnectError) else text
