"""What the screen needs before it opens: settings, the model's path, chats, the engine's client."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app import locations
from app.chat.controller import ChatController
from app.keys import read_keymap
from app.services import Services
from app.settings import Settings, load_settings, save_setting
from app.store.chats import ChatStore
from engine.configuration import Configuration, DraftConfiguration
from engine.errors import ModelFileError
from engine.model.library import find_model, scan
from engine.model.starter import STARTER, install_starter
from engine.worker_client import WorkerClient

DEFAULT_N_CTX = 8192


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for on the command line."""

    model: str | None = None
    draft: str | None = None
    preset: str | None = None
    theme: str | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """Everything that the application is made of; `close` ends it."""

    settings: Settings
    store: ChatStore
    controller: ChatController
    services: Services
    model: Path | None
    """The model to open; None asks the user."""
    notices: tuple[str, ...]

    def close(self) -> None:
        """Save the running reply, end the engine, close the database."""
        self.controller.close()
        self.store.close()


def prepare(request: Request, binding_ids: Sequence[str]) -> Opened:
    """Open everything, nothing of it visible yet.

    Args:
        request: The command line.
        binding_ids: Ids that the settings may bind keys to.

    Raises:
        ModelFileError: If the named model or draft model is not there.
        PresetError: If the named preset is not there or not valid.
        StoreError: If the database cannot be opened.
    """
    loaded = load_settings()
    settings = loaded.settings
    folders = locations.model_folders(settings.models.folders)
    draft = find_model(request.draft, folders) if request.draft else None
    named = find_model(request.model, folders) if request.model else None
    store = ChatStore(locations.database_path())
    model = named or _usual_model(settings, folders, store)
    client = WorkerClient(
        log_path=locations.worker_log_path(), memory_path=locations.build_memory_path()
    )
    controller = ChatController(
        client,
        store,
        sampling=settings.chat.sampling(),
        system_prompt=settings.chat.system_prompt,
        max_tokens=settings.chat.max_tokens,
    )
    keymap = read_keymap(settings.keys, binding_ids)
    services = Services(
        configure=lambda path: configure(path, draft, request.preset, settings),
        planned_bytes=planned_bytes,
        scan=lambda: scan(folders, cache_path=locations.header_cache_path()),
        folders=folders,
        install_starter=lambda progress: install_starter(locations.models_dir(), progress),
        presets_dir=locations.presets_dir(),
        save_theme=lambda name: save_setting("ui", "theme", name),
        keymap=keymap.keys,
    )
    problem = (loaded.problem,) if loaded.problem else ()
    notices = (*problem, *keymap.problems, *store.notices)
    return Opened(settings, store, controller, services, model, notices)


def _usual_model(settings: Settings, folders: Sequence[Path], store: ChatStore) -> Path | None:
    """The model of the settings, else the one used last, else the starter, else none."""
    if settings.models.default:
        return find_model(settings.models.default, folders)
    last = next((chat.model_path for chat in store.list_chats(limit=1)), None)
    if last is not None and Path(last).is_file():
        return Path(last)
    starter = locations.models_dir() / STARTER.file_name
    if starter.is_file():
        return starter
    try:
        return find_model("starter", folders)
    except ModelFileError:
        usable = (entry for entry in scan(folders, cache_path=locations.header_cache_path()))
        return next((entry.path for entry in usable if entry.problem is None), None)


def configure(
    path: Path, draft: Path | None, preset: str | None, settings: Settings
) -> Configuration:
    """The configuration that a model is opened with.

    Raises:
        EngineError: If the model or the preset cannot be read, or they do not go together.
    """
    from engine.model.gguf import read_gguf

    header = read_gguf(path)
    trained = header.integer(f"{header.architecture}.context_length") or DEFAULT_N_CTX
    configuration = Configuration(
        model_path=path,
        n_ctx=min(trained, DEFAULT_N_CTX),
        speculation=settings.speculation.speculation(),
    )
    return replace(
        configuration,
        n_threads=settings.engine.n_threads,
        use_extra_buffers=settings.engine.use_extra_buffers,
        draft=DraftConfiguration(draft, n_ctx=configuration.n_ctx) if draft else None,
    )


def planned_bytes(configuration: Configuration) -> int | None:
    """What the estimate says that the configuration takes on all devices together."""
    del configuration
    return None
