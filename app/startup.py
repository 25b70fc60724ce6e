"""What the screen needs before it opens: settings, the model's path, chats, the engine's client."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app import paths
from app.chat.conversation import Conversation
from app.chat.reopening import restore_last_chat
from app.config import ModelSettings, Settings, load_settings, save_setting
from app.keys import Keymap, read_keymap
from app.opening import ModelRequest, choose_model, planned_bytes, usual_model
from app.services import Services
from app.store.chats import ChatStore
from engine.errors import ModelFileError
from engine.model.library import LibraryScan
from engine.model.starter import install_starter
from engine.process.client import WorkerClient

SCREEN_PATIENCE_S = 0.2
"""How long the screen stops for another program that writes the chats, in seconds."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Everything that the application is made of; `close` ends it."""

    settings: Settings
    store: ChatStore
    controller: Conversation
    services: Services
    model: Path | None
    """The model to open; None asks the user."""
    notices: tuple[str, ...]

    def close(self) -> None:
        """Save the running reply, end the engine, close the database."""
        self.controller.close()
        self.store.close()


def prepare(request: ModelRequest, binding_ids: Callable[[], Sequence[str]]) -> Opened:
    """Open everything, nothing of it visible yet.

    Args:
        request: The command line.
        binding_ids: Gives the ids that the settings may bind keys to, if they bind any.

    Raises:
        ModelFileError: If the named model or draft model is not there.
        PresetError: If the named preset is not there or not valid.
        StoreError: If the database cannot be opened.
    """
    loaded = load_settings()
    settings = loaded.settings
    folders = paths.model_folders(settings.models.folders)
    chosen = choose_model(request, folders)
    rules = chosen.rules
    store = ChatStore(paths.database_path(), patience_s=SCREEN_PATIENCE_S)
    model, no_default = (
        (chosen.path, None) if chosen.path else _usual_model(settings, folders, store)
    )
    client = WorkerClient(
        log_path=paths.worker_log_path(),
        memory_path=paths.build_memory_path(),
        costs_path=paths.costs_path(),
        cache=settings.cache.cache(paths.snapshots_dir()),
    )
    controller = Conversation(
        client,
        store,
        sampling=rules.sampling.settings() if rules else settings.chat.sampling(),
        system_prompt=chosen.system_prompt(settings),
        max_tokens=settings.chat.max_tokens,
    )
    restore_last_chat(controller, settings.chat.reopen)
    keymap = read_keymap(settings.keys, binding_ids()) if settings.keys else Keymap({})
    services = Services(
        configure=lambda path: chosen.configure(path, settings),
        planned_bytes=planned_bytes,
        scan=LibraryScan(folders, paths.header_cache_path()),
        folders=folders,
        install_starter=lambda progress: install_starter(paths.models_dir(), progress),
        presets_dir=paths.presets_dir(),
        save_theme=lambda name: save_setting("ui", "theme", name),
        save_tint=lambda mode: save_setting("ui", "tint", mode),
        save_speculation=lambda key, value: save_setting("speculation", key, value),
        tint=settings.ui.tint,
        keymap=keymap.keys,
        forget_kept=_forget_kept,
    )
    problems = filter(None, (loaded.problem, no_default))
    notices = (*problems, *keymap.problems, *store.notices)
    return Opened(settings, store, controller, services, model, notices)


def _forget_kept(owner: str) -> None:
    from engine.cache.snapshot_store import forget_owner  # with the first chat that is deleted

    folder = paths.snapshots_dir()
    if folder.is_dir():
        forget_owner(folder, owner)


def _usual_model(
    settings: Settings, folders: Sequence[Path], store: ChatStore
) -> tuple[Path | None, str | None]:
    """The model to open, and what is wrong with the one that the settings name."""
    last = next((chat.model_path for chat in store.list_chats(limit=1)), None)
    try:
        return usual_model(settings, folders, last), None
    except ModelFileError as error:
        without = settings.model_copy(update={"models": ModelSettings()})
        return usual_model(without, folders, last), f"[models] default of the settings: {error}"
