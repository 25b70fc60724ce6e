"""Models of the Hugging Face hub: names, search, listings, and downloads that resume.

A download has the suffix `.part` until its checksum is verified; the next try appends to it.
"""

import errno
import hashlib
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import quote, urlencode

from engine.errors import EngineError, ModelFileError
from engine.files import expanded, read_text, reason_of, sha256_of, sync_folder
from engine.http import Answer, HttpClient, HttpError, UnreachableError
from engine.model.gguf import MAX_PARTS, SPLIT_NAME, names_of_parts
from engine.model.identity import is_projector_name

HF_PREFIX = "hf:"
HF_ENDPOINT = "https://huggingface.co"
REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
HUB_NAME = re.compile(
    rf"hf:(//)?(?P<repo>{REPOSITORY.pattern})"
    r"(/(?P<file>[^@?#]+\.gguf)(@(?P<revision>.+))?"
    r"|(?<!\.gguf)(@(?P<branch>[\w./-]+))?(:(?P<quantization>[\w.-]+))?)",
    re.IGNORECASE,
)
DEFAULT_REVISION = "main"
TOKENS_PAGE = "https://huggingface.co/settings/tokens"
MAX_TOKEN_BYTES = 4096
MAX_FILES = 5_000
MAX_REPOSITORIES = 30
LISTING_S = 60.0  # from the first request to the last byte
MAX_PAGE_BYTES = 8 << 20  # the hub sends a thousand files in half a megabyte
MAX_FILE_BYTES = 1 << 60
SLOW_S, SLOW_BYTES = 60.0, 64 << 10  # a download with fewer bytes in this time ends
MAX_FAILURES = 5  # connections in a row that end without a new byte, or that begin the file again
RETRY_S = 1.0
CHUNK_BYTES = 1 << 20  # between two reports of progress, at which a download can be stopped
SPARE_BYTES = 256 << 20  # disk space that a download leaves free
GB = 1_000_000_000
SHA256 = re.compile(r"[0-9a-f]{64}")
CONTENT_RANGE = re.compile(r"bytes (?P<start>\d{1,18})-(?P<end>\d{1,18})/(?P<total>\d{1,18})$")

Progress = Callable[[int, int], None]  # called with the number of bytes on disk and of all bytes


class DownloadError(EngineError):
    """A repository or a file of the hub that cannot be read."""

    title = "Hugging Face hub"


class StoppedError(DownloadError):
    """A download that its user stopped; the next one resumes."""

    title = "The download was stopped"


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository as it is typed, or a file in it."""

    repo: str
    revision: str = DEFAULT_REVISION
    quantization: str | None = None
    file: str | None = None  # path of a GGUF file

    @property
    def wanted(self) -> str | None:
        """The requested quantisation or file name."""
        return self.quantization if self.file is None else _model_name(self.file)


@dataclass(frozen=True, slots=True)
class HubPart:
    """One file of a repository."""

    path: str
    nbytes: int
    sha256: str | None  # None if the hub names none


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of a repository: one GGUF file, or all files of a split one."""

    repo: str
    revision: str
    parts: tuple[HubPart, ...]
    has_namesake: bool = False  # whether another folder of the repository has a file of this name

    @property
    def name(self) -> str:
        """The file name without its suffix and the number of its part."""
        return _model_name(self.file_name(self.parts[0]))

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def address(self) -> str:
        """The name of its header: `hf:owner/repository/file.gguf`."""
        at = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{HF_PREFIX}{self.repo}/{self.parts[0].path}{at}"

    @property
    def is_checked(self) -> bool:
        """Whether the hub names a checksum of each file."""
        return all(part.sha256 is not None for part in self.parts)

    def file_name(self, part: HubPart) -> str:
        """The name of a file on this machine, with its folders if it has a namesake."""
        path = PurePosixPath(part.path)
        return "-".join(path.parts) if self.has_namesake else path.name

    def place(self, folder: Path) -> Path:
        """The path of its first file below a model folder; raises `DownloadError` if outside."""
        if not REPOSITORY.fullmatch(self.repo):
            raise DownloadError(f"{self.repo!r} is not a repository: write owner/repository")
        return folder / self.repo / self.file_name(self.parts[0])


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A repository that a search found."""

    name: str
    n_downloads: int  # of the last month


def parse_hub_name(name: str) -> HubName | None:
    """A repository, `hf:owner/repository@revision:Q4_K_M`, or `hf:…/file.gguf@revision`."""
    match = HUB_NAME.fullmatch(name)
    if match is None:
        return None
    revision = match["revision"] or match["branch"] or DEFAULT_REVISION
    return HubName(match["repo"], revision, match["quantization"], match["file"])


def _model_name(file: str) -> str:
    name = PurePosixPath(file).name
    split = SPLIT_NAME.match(name)
    return split["stem"] if split else name[: -len(".gguf")]


def endpoint() -> str:
    """The address of the hub, or of the mirror in `HF_ENDPOINT`."""
    return (os.environ.get("HF_ENDPOINT") or HF_ENDPOINT).rstrip("/")


def file_url(repo: str, file: str, revision: str) -> str:
    """The address of a file."""
    return f"{endpoint()}/{repo}/resolve/{quote(revision, safe='')}/{quote(file)}"


def is_offline() -> bool:
    """Whether `HF_HUB_OFFLINE` forbids requests to the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "TRUE", "YES")


def hub_token() -> str | None:
    """The token of `HF_TOKEN`, else of the file that `hf auth login` writes, else None.

    Raises `ModelFileError` for a token with characters that no request can carry.
    """
    for source in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := os.environ.get(source, "").strip():
            break
    else:
        caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
        source = os.environ.get("HF_TOKEN_PATH") or f"{home}/token"
        try:
            token = read_text(expanded(source), limit=MAX_TOKEN_BYTES).strip()
        except (OSError, UnicodeDecodeError):
            return None  # public files need none
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ModelFileError(f"the token in {source} has invalid characters: renew it")
    return token or None


def hub_client() -> HttpClient:
    """A client that sends the token to the hub only."""
    return HttpClient(endpoint(), key=hub_token(), follows_redirects=True)


def refusal(answer: Answer, page: str | None) -> str:
    """Why a server refuses a file, and what to do; `page` is None unless it is the hub."""
    status, token = answer.status, f"HF_TOKEN ({TOKENS_PAGE})"
    is_gated = answer.headers.get("X-Error-Code") == "GatedRepo"
    match status:
        case 401 if page is None:
            return (
                "the server requires a login, which kvchat does not support: download the file "
                "with a browser and pass its path"
            )
        case 401 | 403 if is_gated:
            return f"the model is gated: accept its terms at {page}, and set {token}"
        case 401:
            return (
                "the repository is private or gated, or it does not exist (401): check the name, "
                f"or set a valid {token}"
            )
        case 403:
            where = f" at {page}" if page else ""
            return (
                f"access is denied (403): request access{where}, or download the file with a "
                "browser and pass its path"
            )
        case 404 | 410:
            return f"it does not exist ({status}): check repository, revision and file name"
        case 416:
            return "the file is empty, or shorter than before"
        case 429:
            return "too many requests (429): wait a few minutes"
        case _ if status < 500:
            return (
                f"the server does not support range requests, or the file moved ({status}): "
                "download the file with a browser and pass its path"
            )
        case _:
            return f"the server answered {status}: try again later"


def repository_models(repo: str, revision: str = DEFAULT_REVISION) -> list[HubModel]:
    """The models of a repository, the smallest first; raises `DownloadError` if there is none."""
    models = [each for each in _listed(repo, revision) if not is_projector_name(each.name)]
    if not models:
        raise DownloadError(f"{repo} has no GGUF model: choose a repository that has one")
    return models


def repository_projectors(repo: str, revision: str = DEFAULT_REVISION) -> list[HubModel]:
    """The projectors of a repository, the smallest first; raises as `repository_models` does."""
    return [each for each in _listed(repo, revision) if is_projector_name(each.name)]


def find_repositories(words: str, maker: str = "") -> list[HubRepository]:
    """Repositories with GGUF files and these words in their names: the maker's, then by use."""
    query = {"search": words, "filter": "gguf", "sort": "downloads", "direction": "-1"}
    query["limit"], found = str(MAX_REPOSITORIES), []
    for entry in islice(_entries(words, "", query), MAX_REPOSITORIES):
        match entry.get("id"), entry.get("downloads"):
            case str(name), int() | None as n_downloads if REPOSITORY.fullmatch(name):
                found.append(HubRepository(name, n_downloads or 0))
    prefix = f"{maker.lower()}/" if maker else ""
    is_other = {each.name: not each.name.lower().startswith(prefix) for each in found}
    return sorted(found, key=lambda each: (is_other[each.name], -each.n_downloads))


def _listed(repo: str, revision: str) -> list[HubModel]:
    """The complete models of a repository, the smallest first."""
    tree = f"/{repo}/tree/{quote(revision, safe='')}"
    entries = islice(_entries(repo, tree, {"recursive": "true"}), MAX_FILES)
    found = {part.path: part for part in map(_part, entries) if part is not None}
    names = Counter(PurePosixPath(path).name.lower() for path in found)
    models = []
    for path in found:
        split = SPLIT_NAME.match(path)
        is_first = split is None or (int(split["number"]) == 1 <= int(split["count"]) <= MAX_PARTS)
        paths = names_of_parts(split) if split and is_first else [path]
        if is_first and all(each in found for each in paths):
            parts = tuple(found[each] for each in paths)
            has_namesake = any(names[PurePosixPath(each).name.lower()] > 1 for each in paths)
            models.append(HubModel(repo, revision, parts, has_namesake))
    return sorted(models, key=lambda model: model.nbytes)


def _entries(what: str, path: str, query: Mapping[str, str]) -> Iterator[Mapping[str, object]]:
    """The objects of a listing, page after page."""
    url: str | None = f"{endpoint()}/api/models{path}?{urlencode(query)}"
    ends_at = time.monotonic() + LISTING_S
    with _translated(what):
        client = hub_client()
        while url:
            with client.request("GET", url, limit_s=ends_at - time.monotonic()) as answer:
                _check(answer, what, (200,))
                entries = answer.json(MAX_PAGE_BYTES)
                url = answer.next_page()
            if not isinstance(entries, list):
                raise DownloadError(f"{what}: {endpoint()} sent no file list: try again later")
            yield from (entry for entry in entries if isinstance(entry, dict))


def _check(answer: Answer, what: str, good: tuple[int, ...]) -> None:
    if answer.status not in good:
        raise DownloadError(f"{what}: {refusal(answer, f'{endpoint()}/{what}')}")


def _part(entry: Mapping[str, object]) -> HubPart | None:
    path, size, lfs = (entry.get(key) for key in ("path", "size", "lfs"))
    if not isinstance(path, str) or not isinstance(size, int) or not path.isprintable():
        return None
    if not path.lower().endswith(".gguf") or not 0 < size <= MAX_FILE_BYTES:
        return None
    if path.startswith("/") or ".." in PurePosixPath(path).parts:
        return None
    digest = lfs.get("oid") if isinstance(lfs, dict) else None
    return HubPart(path, size, None if digest is None else str(digest).lower())


def download(model: HubModel, folder: Path, progress: Progress) -> Path:
    """Download a model below a folder, verify it, and return the path of its first file.

    An exception that `progress` raises ends the download, and the next one resumes.

    Raises:
        DownloadError: the hub, the connection, the disk or a checksum fails.
    """
    first = model.place(folder)
    n_before = 0
    with _translated(model.name, first.parent):
        first.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_space(model, first.parent)
        for part in model.parts:
            target = first.with_name(model.file_name(part))
            if not (target.is_file() and target.stat().st_size == part.nbytes):
                _fetch(model, part, target, progress, n_before)
            n_before += part.nbytes
        progress(n_before, model.nbytes)
        sync_folder(first.parent)
    return first


def _fetch(model: HubModel, part: HubPart, target: Path, progress: Progress, n_before: int) -> None:
    if part.sha256 is not None and not SHA256.fullmatch(part.sha256):
        raise DownloadError(
            f"{target.name} was not downloaded because it cannot be verified: the hub reports "
            f"{part.sha256[:40]!r}, which is not a SHA-256 checksum"
        )
    unverified = _part_path(target, part, model.revision)
    unverified.touch(mode=0o600)
    with unverified.open("r+b") as file:
        _Transfer(model, part, file, progress, n_before).run()
    if part.sha256 is not None and sha256_of(unverified) != part.sha256:
        unverified.unlink()
        raise DownloadError(
            f"the checksum of {target.name} differs from the one that the hub reports: the "
            "download was deleted and nothing was installed; try again"
        )
    unverified.replace(target)


def _part_path(target: Path, part: HubPart, revision: str) -> Path:
    """Path of a file's unfinished download, different for each content."""
    content = part.sha256 or f"{revision} {part.nbytes}"
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return target.with_name(f"{target.name}.{digest}.part")


@dataclass(slots=True)
class _Transfer:
    """Append the missing bytes of a file, reconnecting as needed."""

    model: HubModel
    part: HubPart
    file: BinaryIO
    progress: Progress
    n_before: int  # bytes of the model's files before this one
    n_there: int = 0
    n_restarts: int = 0

    def run(self) -> None:
        self.n_there = self.file.seek(0, os.SEEK_END)
        if self.n_there > self.part.nbytes:
            self._clear()
        client, n_failures = hub_client(), 0
        while (n_start := self.n_there) < self.part.nbytes:
            reason = "the connection ended"
            try:
                self._append(client)
            except UnreachableError as error:
                reason = str(error)
            n_failures = 0 if self.n_there > n_start else n_failures + 1
            if n_failures + self.n_restarts > MAX_FAILURES:
                if self.n_restarts:
                    reason += "; the server cannot resume downloads: try another mirror "
                    reason += "(HF_ENDPOINT)"
                raise UnreachableError(reason)
            time.sleep(RETRY_S * min(n_failures, 1))

    def _append(self, client: HttpClient) -> None:
        n_start = self.n_there
        url = file_url(self.model.repo, self.part.path, self.model.revision)
        headers = {"Range": f"bytes={n_start}-"} if n_start else {}
        with client.request("GET", url, limit_s=SLOW_S, headers=headers) as answer:
            _check(answer, self.model.repo, (200, 206))
            sent = CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
            if n_start and answer.status == 200:
                self.n_restarts += 1
                self._clear()
            elif n_start and (sent is None or int(sent["start"]) != n_start):
                raise DownloadError(
                    f"{self.model.name}: {url} sent a different byte range than requested"
                )
            self._write(answer)

    def _write(self, answer: Answer) -> None:
        n_noted = n_reported = self.n_there
        for chunk in answer.chunks:
            self.n_there += self.file.write(chunk)
            if self.n_there > self.part.nbytes:
                self._clear()  # none of it can be trusted
                raise DownloadError(
                    f"{self.part.path} is longer than the {self.part.nbytes:,} bytes "
                    "that the hub reports: the download was deleted; try again, or use "
                    "another mirror (HF_ENDPOINT)"
                )
            if self.n_there - n_noted >= SLOW_BYTES:
                n_noted = self.n_there
                answer.watch.note_progress(SLOW_S)
            if self.n_there - n_reported >= CHUNK_BYTES:
                n_reported = self.n_there
                self.progress(self.n_before + self.n_there, self.model.nbytes)

    def _clear(self) -> None:
        self.n_there = self.file.seek(0)
        self.file.truncate()


def _require_space(model: HubModel, folder: Path) -> None:
    n_there = 0
    for part in model.parts:
        target = folder / model.file_name(part)
        files = (target, _part_path(target, part, model.revision))
        n_there += sum(path.stat().st_size for path in files if path.is_file())
    needed = model.nbytes - n_there + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{folder} has {free / GB:.1f} GB free, but {model.name} needs {needed / GB:.1f} "
            "GB: free some space, or choose a smaller file"
        )


@contextmanager
def _translated(what: str, folder: Path | None = None) -> Iterator[None]:
    """Errors of HTTP and of the disk as those of downloads."""
    advice = ": try again later" if folder is None else "; the next attempt resumes the download"
    if is_offline():
        raise DownloadError(
            f"{what} is not downloaded while HF_HUB_OFFLINE is set: unset this variable"
        )
    try:
        yield
    except UnreachableError as error:
        raise DownloadError(f"{what}: no connection to {endpoint()} ({error}){advice}") from error
    except HttpError as error:
        raise DownloadError(f"{what}: {endpoint()} {error}{advice}") from error
    except OSError as error:
        reason = reason_of(error)
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                text = (
                    f"the disk of {folder} is full: free some space, and try again; the "
                    f"download of {what} resumes"
                )
            case errno.EACCES | errno.EROFS | errno.EPERM:
                text = f"{folder} cannot be written ({reason}): choose another folder"
            case _:
                text = f"{what}: {reason}{advice}"
        raise DownloadError(text) from error
