"""Addresses of models elsewhere, `hf:` names among them, and the hub's token."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from engine.errors import ModelFileError
from engine.files import expanded, read_text
from engine.servers import origin_of

HF_PREFIX = "hf:"
HF_ENDPOINT = "https://huggingface.co"
HF_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
HF_PAGE = re.compile(
    r"^/(?P<repo>[^/]+/[^/]+)/(?:blob|resolve|raw)/(?P<revision>[^/]+)/(?P<file>.+)$"
)
HF_NAME = re.compile(
    r"^(?P<owner>[\w.-]+)/(?P<repo>[\w.-]+)/(?P<file>[^@?#]+\.gguf)(@(?P<rev>.+))?$"
)
DEFAULT_REVISION = "main"
TOKEN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """One file behind a URL."""

    url: str
    is_hub: bool
    """Whether it lies on the Hugging Face hub, or on the mirror of `HF_ENDPOINT`."""
    page: str | None = None
    """Where a person sees the repository."""

    @property
    def file_name(self) -> str:
        """The file's own name."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    @property
    def shown(self) -> str:
        """The URL without its query, which may hold a secret."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))

    def sibling(self, file_name: str) -> "RemoteAddress":
        """Another file of the same folder."""
        parts = urlsplit(self.url)
        folder = parts.path.rpartition("/")[0]
        path = f"{folder}/{quote(file_name)}"
        url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
        return RemoteAddress(url, self.is_hub, self.page)


def is_remote(name: str) -> bool:
    """Whether a name means a file on another machine."""
    return name.lower().startswith(("http://", "https://", HF_PREFIX))


def parse_address(name: str) -> RemoteAddress:
    """The file that a URL or an `hf:` name means.

    Pages of the Hugging Face hub (`/blob/`) become the files that they show. `HF_ENDPOINT` names a
    mirror of the hub.

    Raises:
        ModelFileError: it names no GGUF file.
    """
    if name.lower().startswith(HF_PREFIX):
        return _of_hub_name(name)
    try:
        parts = urlsplit(name)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ModelFileError(f"{name!r} is not a URL: {error}") from error
    if parts.username is not None or not host:
        raise ModelFileError(
            f"a URL with {'a user name' if host else 'no host'} is not read: write it as "
            "https://host/folder/model.gguf"
        )
    page = HF_PAGE.match(parts.path)
    if page is not None and (host in HF_HOSTS or origin_of(name) == origin_of(endpoint())):
        return _on_hub(page["repo"], unquote(page["file"]), unquote(page["revision"]))
    if not parts.path.lower().endswith(".gguf"):
        raise ModelFileError(
            f"{urlunsplit((parts.scheme, parts.netloc, parts.path, '', ''))} does not end in "
            ".gguf: give the address of the file itself"
        )
    is_hub = host in HF_HOSTS and parts.port in (None, 80, 443)
    scheme, place = (
        ("https", host) if is_hub else (parts.scheme, parts.netloc)
    )  # a token goes along
    url = urlunsplit((scheme, place, quote(parts.path, safe="/%"), parts.query, ""))
    return RemoteAddress(url, is_hub=is_hub or origin_of(name) == origin_of(endpoint()))


def endpoint() -> str:
    """The address of the Hugging Face hub, or of its mirror."""
    return (os.environ.get("HF_ENDPOINT") or HF_ENDPOINT).rstrip("/")


def hub_token() -> str | None:
    """The token of `HF_TOKEN`, else of the file that `hf auth login` writes, else none.

    Raises:
        ModelFileError: a token with characters that no request can carry.
    """
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := os.environ.get(name, "").strip():
            return _checked_token(token, name)
    path = _token_path()
    try:
        token = read_text(path, limit=TOKEN_BYTES).strip()
    except (OSError, UnicodeDecodeError):
        return None  # no login: public files are read without one
    return _checked_token(token, str(path)) if token else None


def _of_hub_name(name: str) -> RemoteAddress:
    match = HF_NAME.match(name[len(HF_PREFIX) :].removeprefix("//"))
    if match is None:
        raise ModelFileError(
            f"{name!r} is not a file of the hub: write hf:owner/repository/file.gguf, "
            "with @revision at the end for a revision other than main"
        )
    repo = f"{match['owner']}/{match['repo']}"
    return _on_hub(repo, match["file"], match["rev"] or DEFAULT_REVISION)


def _on_hub(repo: str, file: str, revision: str) -> RemoteAddress:
    if not file.lower().endswith(".gguf"):
        raise ModelFileError(f"{file} of {repo} is not a GGUF file: choose one that ends in .gguf")
    page = f"{endpoint()}/{repo}"
    url = f"{page}/resolve/{quote(revision, safe='')}/{quote(file)}"
    return RemoteAddress(url, is_hub=True, page=page)


def _token_path() -> Path:
    if named := os.environ.get("HF_TOKEN_PATH"):
        return expanded(named)
    if home := os.environ.get("HF_HOME"):
        return expanded(home) / "token"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "huggingface" / "token"


def _checked_token(token: str, source: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ModelFileError(f"the token of {source} has invalid characters: renew it")
    return token
