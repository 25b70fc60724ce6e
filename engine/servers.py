"""Addresses and API keys of servers that compute replies."""

import os
from urllib.parse import urlsplit, urlunsplit

from engine.errors import ServerError

KEY_VARIABLE = "KVCHAT_SERVER_KEY"
KEYRING_SERVICE = "kvchat"
"""Service name in the keyring; the user name is the server's origin."""
MAX_KEY = 4096
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def parse_server(text: str) -> str:
    """Normalise a server address to scheme, host, port and path, without a final slash.

    The default scheme is http; a final `/v1` is removed.

    Raises:
        ServerError: it is not an address, or has a user name, query or fragment.
    """
    url = text.strip()
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ServerError(f"{text!r} is not the address of a server: {error}") from error
    if parts.scheme not in ("http", "https") or not host or not url.isprintable():
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
    """Parse a `Configuration.address` to server and model; None if it is the path of a file."""
    if not address.startswith(("http://", "https://")):
        return None
    url, _, model = address.partition("#")
    return url, model or None


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL, which decide whether a key may be sent."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", url, -1  # invalid address: matches no origin
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        port = -1  # invalid port: matches no origin
    return parts.scheme.lower(), (parts.hostname or "").lower(), port


def shown_origin(url: str) -> str:
    """Host and port for display."""
    return urlsplit(url).netloc.rpartition("@")[2]


def goes_unencrypted(url: str) -> bool:
    """Whether requests are sent unencrypted to another machine."""
    scheme, host, _ = origin_of(url)
    return scheme == "http" and host not in LOOPBACK


def key_of(url: str, *, is_trusted: bool = False) -> str | None:
    """API key of a server: from the environment if `is_trusted`, else from the keyring.

    A key in the keyring belongs to one origin, that of the environment to any. kvchat never writes
    keys.

    Args:
        url: Address of the server.
        is_trusted: As `Configuration.is_server_trusted`.

    Raises:
        ServerError: the key has characters that an HTTP header cannot have.
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
        return ""  # without the package only the environment has keys
    scheme, host, port = origin_of(url)
    try:
        return (keyring.get_password(KEYRING_SERVICE, f"{scheme}://{host}:{port}") or "").strip()
    except KeyringError:
        return ""  # a locked or missing keyring has no key
