"""The user's token of the Hugging Face hub."""

import os
from pathlib import Path

from engine.errors import ModelFileError
from engine.files import read_text

TOKEN_BYTES = 4096


def hub_token() -> str | None:
    """Give the token of `HF_TOKEN`, else of the file that `hf auth login` writes, else none.

    Raises:
        ModelFileError: a token with characters that no request can carry.
    """
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := os.environ.get(name, "").strip():
            return _checked(token, name)
    path = _token_path()
    try:
        token = read_text(path, limit=TOKEN_BYTES).strip()
    except (OSError, UnicodeDecodeError):
        return None  # no login: public files are read without one
    return _checked(token, str(path)) if token else None


def _token_path() -> Path:
    if named := os.environ.get("HF_TOKEN_PATH"):
        return Path(named).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "token"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "huggingface" / "token"


def _checked(token: str, source: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ModelFileError(f"the token of {source} has characters that no token has: renew it")
    return token
