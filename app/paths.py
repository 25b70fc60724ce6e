"""Folders of kvchat's files and of models; a folder is made when it is first needed."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import platformdirs

from engine.errors import EngineError
from engine.files import expanded

APP = "kvchat"
OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")
"""Model folder of Ollama's service on Linux."""


def typed_path(text: str) -> Path:
    """Path from a typed text; `~` is a home folder."""
    return expanded(text.replace("\0", "\ufffd"))


def current_folder() -> Path:
    """The folder that kvchat was started in; the home folder where that one was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return typed_path("~")


class HomeError(EngineError):
    """There is no folder for files of this user."""

    title = "No home folder"


def _own(folder: Callable[..., str]) -> Path:
    try:
        return Path(folder(APP, appauthor=False))
    except RuntimeError as error:
        raise HomeError(f"{error}: set HOME to a folder for the settings and chats") from error


def config_dir() -> Path:
    """The folder of settings, presets and themes of the user."""
    return _own(platformdirs.user_config_dir)


def data_dir() -> Path:
    """The folder of the chats and of installed models."""
    return _own(platformdirs.user_data_dir)


def state_dir() -> Path:
    """The folder of the logs and of what kvchat remembers about this machine."""
    return _own(platformdirs.user_state_dir)


def cache_dir() -> Path:
    """The folder of what can be made again."""
    return _own(platformdirs.user_cache_dir)


def settings_path() -> Path:
    """The settings file."""
    return config_dir() / "config.toml"


def presets_dir() -> Path:
    """The folder of the user's presets."""
    return config_dir() / "presets"


def themes_dir() -> Path:
    """The folder of the user's themes."""
    return config_dir() / "themes"


def builtin_themes_dir() -> Path:
    """The folder of kvchat's own themes: in the package, or beside it in a checkout."""
    here = Path(__file__).parent
    packaged = here / "_themes"
    return packaged if packaged.is_dir() else here.parent / "themes"


def database_path() -> Path:
    """The file of the chats."""
    return data_dir() / "chats" / "chats.db"


def models_dir() -> Path:
    """The folder that models are installed to."""
    return data_dir() / "models"


def header_cache_path() -> Path:
    """The cache of the headers of scanned models."""
    return cache_dir() / "models.json"


def remote_headers_dir() -> Path:
    """The folder that keeps headers of models on other machines."""
    return cache_dir() / "headers"


def snapshots_dir() -> Path:
    """The folder of the saved states (KV cache) of chats."""
    return cache_dir() / "states"


def hashes_path() -> Path:
    """The file that remembers the hashes of model files."""
    from engine.cache.namespace import HASHES  # most commands need no hash

    return cache_dir() / HASHES


def worker_log_path() -> Path:
    """The log of the engine's process, llama.cpp's own lines in it."""
    return state_dir() / "worker.log"


def faults_dir() -> Path:
    """The folder of reports of faults, a file for each place that failed."""
    return state_dir() / "faults"


def doctor_log_path() -> Path:
    """The log of the engine's process that `kvchat doctor` starts."""
    return state_dir() / "doctor.log"


def costs_path() -> Path:
    """The file with the measured batch costs of each model on this machine."""
    return state_dir() / "costs.json"


def speeds_path() -> Path:
    """The file that keeps how fast models run on this machine."""
    return state_dir() / "speeds.json"


def favourites_dir() -> Path:
    """The folder of favourite models."""
    return data_dir() / "favourites"


def bandwidths_path() -> Path:
    """The file that keeps how fast this machine's memory is read."""
    return state_dir() / "bandwidths.json"


def cache_plans_dir() -> Path:
    """The folder of what was measured of cache types, and what was chosen by it."""
    return data_dir() / "cache-plans"


def model_folders(configured: Sequence[Path]) -> tuple[Path, ...]:
    """The folders that are scanned for models, in order, each once; some may not exist.

    Args:
        configured: The folders of the settings.
    """
    folders = [*_environment_folders(), *configured, models_dir(), *_shared_folders()]
    here = current_folder()
    whole = (os.path.normpath(here / typed_path(str(folder))) for folder in folders)
    return tuple(dict.fromkeys(map(Path, whole)))  # links stay visible


def _environment_folders() -> Iterator[Path]:
    return (Path(part) for part in os.environ.get("KVCHAT_MODELS", "").split(os.pathsep) if part)


def _shared_folders() -> Iterator[Path]:
    """Folders that other programs keep GGUF files in."""
    home = typed_path("~")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    yield home / "models"
    yield from _lm_studio(home, cache)
    yield from _ollama(home)
    yield Path(os.environ.get("LLAMA_CACHE") or cache / "llama.cpp")
    if sys.platform == "darwin":
        yield home / "Library" / "Caches" / "llama.cpp"
    yield _hugging_face_hub(cache)


def _lm_studio(home: Path, cache: Path) -> Iterator[Path]:
    """LM Studio's folders: the one that its settings name, and the usual ones of its versions."""
    from engine.files import SETTINGS_BYTES, read_bytes
    from engine.parsing import parse_json

    for own in (home / ".lmstudio", cache / "lm-studio"):
        try:
            settings = parse_json(read_bytes(own / "settings.json", limit=SETTINGS_BYTES))
        except (OSError, ValueError):
            settings = None
        named = settings.get("downloadsFolder") if isinstance(settings, dict) else None
        if isinstance(named, str) and Path(named).is_absolute():
            yield Path(named)
        yield own / "models"


def _ollama(home: Path) -> Iterator[Path]:
    """Ollama's stores: the user's, and that of its service on Linux."""
    if named := os.environ.get("OLLAMA_MODELS"):
        yield Path(named)
    yield home / ".ollama" / "models"
    yield OLLAMA_SERVICE


def _hugging_face_hub(cache: Path) -> Path:
    if hub := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(hub)
    if hf_home := os.environ.get("HF_HOME"):
        return Path(hf_home) / "hub"
    return cache / "huggingface" / "hub"
