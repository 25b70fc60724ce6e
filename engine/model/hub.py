"""Models of the Hugging Face hub: repositories by name, their files, and downloads that go on.

A download is kept beside its place under the name with `.part` behind it; what is there is not
asked for again. The library `huggingface_hub` (2.4) asks, goes on where a connection ended, and
follows the hub to where its files lie.
"""

import errno
import hashlib
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from engine.clock import in_time
from engine.errors import EngineError
from engine.files import sync_folder
from engine.model.addresses import DEFAULT_REVISION, HF_NAME, HF_PREFIX, endpoint, hub_token
from engine.model.gguf import SPLIT_NAME
from engine.model.library import is_projector_name

if TYPE_CHECKING:
    from huggingface_hub import HfApi

REPOSITORY = re.compile(
    r"^(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?(:(?P<quantization>[\w.-]+))?$"
)
MAX_FILES = 5_000
MAX_REPOSITORIES = 30
LISTING_S = 120.0
"""How long a listing may take, from the first request to the last byte."""
SPARE_BYTES = 256 << 20
"""Room that a download leaves on the disk."""
GB = 1_000_000_000
CHUNK_BYTES = 1 << 20
"""Between two steps of the progress, at which a download can be stopped."""
PART_SUFFIX = ".part"

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are there."""


class DownloadError(EngineError):
    """A repository or a file of the hub that cannot be had."""

    title = "The download did not work"


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


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of a repository: one GGUF file, or those that it is split into."""

    repo: str
    revision: str
    parts: tuple[HubPart, ...]

    @property
    def name(self) -> str:
        """The file name without its ending, and without what numbers its parts."""
        name = PurePosixPath(self.parts[0].path).name
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
        return folder / self.repo / PurePosixPath(self.parts[0].path).name


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
        raise DownloadError(f"{repo} holds no GGUF model: name a repository that does")
    return models


def repository_projectors(repo: str, revision: str = DEFAULT_REVISION) -> list[HubModel]:
    """The projectors of a repository, the smallest first; raises as `repository_models` does."""
    return [each for each in _listed(repo, revision) if is_projector_name(each.name)]


def _listed(repo: str, revision: str) -> list[HubModel]:
    """The whole files of a repository, the smallest first."""
    with _translated(repo):
        files = in_time(lambda: _files(repo, revision), LISTING_S)
    groups: dict[str, list[HubPart]] = defaultdict(list)
    for part in filter(None, files):
        name = PurePosixPath(part.path)
        split = SPLIT_NAME.match(name.name)
        key = str(name.with_name(f"{split['stem']}-{split['count']}")) if split else part.path
        groups[key].append(part)
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
    tree = _api().list_repo_tree(repo, recursive=True, revision=revision)
    return [_part(item) for item in islice(tree, MAX_FILES)]


def _repositories(words: str) -> list[HubRepository]:
    listed = _api().list_models(
        search=words, filter="gguf", sort="downloads", limit=MAX_REPOSITORIES
    )
    models = islice(listed, MAX_REPOSITORIES)
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
            target = first.with_name(PurePosixPath(part.path).name)
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
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented

    constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES
    draft = target.with_name(f"{target.name}{PART_SUFFIX}")
    url = hf_hub_url(model.repo, part.path, revision=model.revision, endpoint=endpoint())
    draft.touch(mode=0o600)
    with draft.open("r+b") as file:
        n_there = file.seek(0, 2)
        if n_there > part.nbytes:
            n_there = file.truncate(0)
            file.seek(0)
        http_get(
            url,
            file,
            resume_size=n_there,
            headers=build_hf_headers(token=hub_token() or False),
            expected_size=part.nbytes,
            tqdm_class=_bar(n_there, tell),
        )
    if part.sha256 is not None and _sha256(draft) != part.sha256:
        draft.unlink()
        raise DownloadError(
            f"{target.name} came with another checksum than the hub names: nothing was installed "
            "and what came is removed; try again"
        )
    draft.replace(target)


def _bar(n_there: int, tell: Callable[[int], None]) -> Any:
    """A class that takes the place of tqdm's bars and tells how many bytes are there."""

    class Bar:
        def __init__(self, **_: object) -> None:
            self._n = n_there

        def update(self, n: int) -> None:
            self._n += n
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
    if not path.lower().endswith(".gguf"):
        return None
    lfs = getattr(item, "lfs", None)
    digest = getattr(lfs, "sha256", None)
    return HubPart(path, size, digest if isinstance(digest, str) else None)


def _is_whole(parts: Sequence[HubPart]) -> bool:
    """Whether a model is one file, or every part of a split one."""
    split = SPLIT_NAME.match(PurePosixPath(parts[0].path).name)
    return len(parts) == (int(split["count"]) if split else 1)


def _require_space(model: HubModel, folder: Path) -> None:
    there = 0
    for part in model.parts:
        target = folder / PurePosixPath(part.path).name
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
    return api


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
        return DownloadError(f"{what} is not asked for while HF_HUB_OFFLINE is set: unset it")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"the disk of {folder} is full: what came of {what} is kept, free some space and try "
            "again"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return DownloadError(f"{folder} cannot be written ({error.strerror}): name another one")
    if isinstance(error, GatedRepoError):
        return DownloadError(
            f"{what} is gated: accept its terms on the hub, and set HF_TOKEN to a token of yours"
        )
    if isinstance(error, RepositoryNotFoundError):
        return DownloadError(
            f"the hub has no repository {what} that may be read: check its name, or set HF_TOKEN "
            "where it is private"
        )
    return DownloadError(f"{what}: {_short(error)}{_goes_on(folder)}")


def _goes_on(folder: Path | None) -> str:
    return "; the next try goes on from there" if folder is not None else ": try again later"


def _short(error: Exception) -> str:
    said = str(error).strip()
    return said.splitlines()[0][:200].rstrip(".") if said else repr(error)
