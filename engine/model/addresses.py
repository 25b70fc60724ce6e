"""Addresses of models elsewhere, `hf:` names among them, and of servers; who gets which key."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from engine.errors import ModelFileError, ServerError
from engine.files import read_text
from engine.model.ollama import model_name

KEY_VARIABLE = "KVCHAT_SERVER_KEY"
KEYRING_SERVICE = "kvchat"
"""What the keyring files keys under; the user name there is the server's origin."""
MOST_KEY = 4096
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
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
        raise ModelFileError(f"{name!r} is no URL: {error}") from error
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


def parse_server(text: str) -> str:
    """The address of a server as everything else takes it: scheme, host, port, path; no end slash.

    A missing scheme is http, and the `/v1` that other programs want is left out.

    Raises:
        ServerError: it is no address, or holds what must not be kept.
    """
    spelled = text.strip()
    if "://" not in spelled:
        spelled = f"http://{spelled}"
    try:
        parts = urlsplit(spelled)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ServerError(f"{text!r} is no address of a server: {error}") from error
    if parts.scheme not in ("http", "https") or not host or not spelled.isprintable():
        raise ServerError(f"{text!r} is no address of a server: write it as http://host:8080")
    if parts.username is not None or parts.query or parts.fragment:
        raise ServerError(
            f"the address of {host} has a user name, `?` or `#` in it, which would be kept with "
            f"chats and presets: write http://{host}:{port or 8080}, and give the key in "
            f"{KEY_VARIABLE}"
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc.lower(), path, "", ""))


def kept_server(address: str) -> tuple[str, str | None] | None:
    """The server and the model that a chat was made with; None where that is a file.

    It is what `Configuration.address` wrote.
    """
    if not address.startswith(("http://", "https://")):
        return None
    url, _, model = address.partition("#")
    return url, model or None


def model_title(address: str) -> str:
    """The model of a kept address as it is shown: its name at the server, or what its file is."""
    kept = kept_server(address)
    if kept is None:
        return model_name(Path(address))
    url, model = kept
    return Path(model).name.removesuffix(".gguf") if model else shown_origin(url)


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port: whom a key or a token is for."""
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        port = -1  # no number: nobody's
    return parts.scheme.lower(), (parts.hostname or "").lower(), port


def shown_origin(url: str) -> str:
    """The host with its port, as it is shown."""
    return urlsplit(url).netloc.rpartition("@")[2]


def goes_unencrypted(url: str) -> bool:
    """Whether what is sent can be read on the way."""
    scheme, host, _ = origin_of(url)
    return scheme == "http" and host not in LOOPBACK


def key_of(url: str) -> str | None:
    """The key of a server: of the environment, else of the keyring where there is one, else none.

    It is never written anywhere by kvchat.

    Raises:
        ServerError: it has characters that no request can carry.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip()
    source = KEY_VARIABLE
    if not key:
        key, source = _of_keyring(url), "the keyring"
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or " " in key or len(key) > MOST_KEY:
        raise ServerError(f"the key of {source} has characters that no key has: set it again")
    return key


def _of_keyring(url: str) -> str:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return ""  # without the package there is the environment
    scheme, host, port = origin_of(url)
    try:
        return (keyring.get_password(KEYRING_SERVICE, f"{scheme}://{host}:{port}") or "").strip()
    except KeyringError:
        return ""  # a locked or missing keyring is one without a key


def _of_hub_name(name: str) -> RemoteAddress:
    match = HF_NAME.match(name[len(HF_PREFIX) :].removeprefix("//"))
    if match is None:
        raise ModelFileError(
            f"{name!r} names no file of the hub: write hf:owner/repository/file.gguf, with "
            "@revision behind it for another than main"
        )
    repo = f"{match['owner']}/{match['repo']}"
    return _on_hub(repo, match["file"], match["rev"] or DEFAULT_REVISION)


def _on_hub(repo: str, file: str, revision: str) -> RemoteAddress:
    if not file.lower().endswith(".gguf"):
        raise ModelFileError(f"{file} of {repo} is no GGUF file: choose one that ends in .gguf")
    page = f"{endpoint()}/{repo}"
    url = f"{page}/resolve/{quote(revision, safe='')}/{quote(file)}"
    return RemoteAddress(url, is_hub=True, page=page)


def _token_path() -> Path:
    if named := os.environ.get("HF_TOKEN_PATH"):
        return Path(named).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "token"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "huggingface" / "token"


def _checked_token(token: str, source: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ModelFileError(f"the token of {source} has characters that no token has: renew it")
    return token
