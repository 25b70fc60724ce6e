"""Addresses of servers that compute replies, and the key of each."""

import os
from urllib.parse import urlsplit, urlunsplit

from engine.errors import ServerError

KEY_VARIABLE = "KVCHAT_SERVER_KEY"
KEYRING_SERVICE = "kvchat"
"""What the keyring files keys under; the user name there is the server's origin."""
MAX_KEY = 4096
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


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
        raise ServerError(f"{text!r} is not the address of a server: {error}") from error
    if parts.scheme not in ("http", "https") or not host or not spelled.isprintable():
        raise ServerError(f"{text!r} is not the address of a server: write it as http://host:8080")
    if parts.username is not None or parts.query or parts.fragment:
        raise ServerError(
            f"the address of {host} contains a user name, `?` or `#`, which chats and presets "
            f"would store: write http://{host}:{port or 8080}, and set the key in "
            f"{KEY_VARIABLE}"
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc.lower(), path, "", ""))


def saved_server(address: str) -> tuple[str, str | None] | None:
    """The server and the model that a chat was made with; None where that is a file.

    It is what `Configuration.address` wrote.
    """
    if not address.startswith(("http://", "https://")):
        return None
    url, _, model = address.partition("#")
    return url, model or None


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port: whom a key or a token is for."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", url, -1  # no address: nobody's
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


def key_of(url: str, *, is_trusted: bool = False) -> str | None:
    """The key of a server: of the environment if the user named the address, else of the keyring.

    A key in the keyring belongs to one origin; that of the environment is for any. It is never
    written anywhere by kvchat.

    Args:
        url: Address of the server.
        is_trusted: As `Configuration.is_server_trusted`.

    Raises:
        ServerError: it has characters that no request can carry.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip() if is_trusted else ""
    source = KEY_VARIABLE
    if not key:
        key, source = _of_keyring(url), "the keyring"
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or " " in key or len(key) > MAX_KEY:
        raise ServerError(f"the key in {source} has invalid characters: set it again")
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
