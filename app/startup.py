"""Prepare the start of the screen: settings, the model's path, chats, the engine's client."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app import paths
from app.cache import forget_on_disk
from app.chat.conversation import Conversation
from app.chat.snapshot import PlannedBytes
from app.config import ModelSettings, Settings, UserSettings
from app.opening import (
    ChosenModel,
    ModelRequest,
    choose_model,
    new_client,
    preset_servers,
)
from app.store.chats import ChatStore
from engine.configuration import Configuration
from engine.errors import IncompatiblePairError, ModelFileError
from engine.model.library import LibraryScan, ModelEntry
from engine.model.ollama import model_name
from engine.model.speeds import ModelSpeed, Speeds
from engine.model.starter import install_starter
from engine.servers import saved_server

if TYPE_CHECKING:
    from engine.planning.models import FitContext

MAX_CHATS = 500
"""Chats that are asked which server they were made with."""
SCREEN_PATIENCE_S = 0.2
"""Seconds that the screen waits for another program that writes to the database."""


@dataclass(frozen=True, slots=True)
class Services:
    """Functions that may take a moment; screens call them in threads."""

    configure: Callable[[Path], Configuration]
    """The configuration that a model is opened with; raises `EngineError`."""
    fit_context: "Callable[[], FitContext | None]"
    """Computes whether models fit on this machine; None computes nothing."""
    planned_bytes: Callable[[Configuration], PlannedBytes | None]
    """Estimated bytes of a configuration; None without an estimate."""
    scan: Callable[[], Sequence[ModelEntry]]
    """The models in the folders."""
    folders: tuple[Path, ...]
    """Folders that are searched for models."""
    servers: Callable[[], Sequence[str]]
    """Servers with a model each, as `Configuration.address` writes them: of chats and presets."""
    install_starter: Callable[[Callable[[str], None]], Path]
    """Installs the starter model and reports progress; raises `EngineError`."""
    presets_dir: Path
    settings: UserSettings
    """The current settings; choices by key, such as the theme, are saved in them."""
    first_hint: Callable[[Path], str | None] = lambda _: None
    """A hint for the first time that a model is opened; raises `EngineError`."""
    types_note: Callable[[Configuration], str | None] = lambda _: None
    """Why the cache has its types, where they were left open; raises `EngineError`."""
    forget_on_disk: Callable[[str], object] = lambda _: None
    """Removes the saved states on disk of one owner, such as `chat:12`; raises `EngineError`."""


@dataclass(frozen=True, slots=True)
class AppParts:
    """Settings, chats and engine client of the application; `close` ends them."""

    store: ChatStore
    conversation: Conversation
    services: Services
    model: Path | None
    """The model to open; None asks the user, unless there is a configuration."""
    notices: tuple[str, ...]
    configuration: Configuration | None = None
    """A server, which needs no model here."""

    def close(self) -> None:
        """Save the running reply, end the engine, close the database."""
        self.conversation.close()
        self.store.close()


def prepare(request: ModelRequest) -> AppParts:
    """Open everything, nothing of it visible yet."""
    live = UserSettings()
    settings = live.settings
    folders = paths.model_folders(settings.models.folders)
    chosen = choose_model(request, folders)
    store = ChatStore(paths.database_path(), patience_s=SCREEN_PATIENCE_S)
    target, no_default = _target(chosen, settings, folders, store)
    model = target if isinstance(target, Path) else None
    conversation = Conversation(
        new_client(settings.cache.cache(paths.snapshots_dir())),
        store,
        sampling=chosen.sampling(settings),
        system_prompt=chosen.system_prompt(settings),
    )
    conversation.limits = settings.chat
    conversation.restore_last_chat(settings.chat.reopen)
    services = Services(
        configure=lambda path: _configure(chosen, path, live.settings, first=model),
        types_note=lambda configuration: _types_note(chosen, configuration, live.settings),
        planned_bytes=_planned_bytes,
        fit_context=_fit_context,
        scan=LibraryScan(folders, paths.header_cache_path(), _speeds()),
        first_hint=lambda path: _first_hint(path, folders),
        folders=folders,
        servers=lambda: _servers(store),
        install_starter=lambda progress: install_starter(paths.models_dir(), progress),
        presets_dir=paths.presets_dir(),
        settings=live,
        forget_on_disk=forget_on_disk,
    )
    problems = filter(None, (live.loaded.problem, no_default))
    served = target if isinstance(target, Configuration) else None
    return AppParts(store, conversation, services, model, (*problems, *store.notices), served)


def _target(
    chosen: ChosenModel, settings: Settings, folders: Sequence[Path], store: ChatStore
) -> tuple[Configuration | Path | None, str | None]:
    """The server or the model to open, and why the default model cannot be used."""

    def last() -> str | None:
        return next((chat.model_path for chat in store.list_chats(limit=1)), None)

    try:
        return chosen.target(settings, folders, last), None
    except ModelFileError as error:
        without = settings.model_copy(update={"models": ModelSettings()})
        return chosen.target(without, folders, last), (
            f"the default model (`default` under [models] in the settings) cannot be used: {error}"
        )


def _configure(
    chosen: ChosenModel, path: Path, settings: Settings, *, first: Path | None
) -> Configuration:
    """The configuration of a model; a draft model was named for the first one.

    Another model is opened without a draft model that cannot draft for it.
    """
    try:
        return chosen.configure(path, settings)
    except IncompatiblePairError:
        if chosen.draft is None or path == first:
            raise
        return replace(chosen, draft=None).configure(path, settings)


def _types_note(
    chosen: ChosenModel, configuration: Configuration, settings: Settings
) -> str | None:
    """Why the cache has its types, and which draft model was left out."""
    left_out = (
        f"{chosen.draft.name} has a different vocabulary and cannot draft for this model: "
        "the model was opened without a draft model"
        if chosen.draft is not None and configuration.draft is None
        else None
    )
    notes = (left_out, chosen.types_note(configuration, settings))
    return "\n".join(filter(None, notes)) or None


def _servers(store: ChatStore) -> list[str]:
    """The servers that chats were made with, last used first, and those of presets."""
    used = [chat.model_path or "" for chat in store.list_chats(limit=MAX_CHATS)]
    found = dict.fromkeys(address for address in used if saved_server(address) is not None)
    of_presets = (Configuration.at_server(*each).address for each in preset_servers())
    return list(found | dict.fromkeys(of_presets))


def _first_hint(path: Path, folders: Sequence[Path]) -> str | None:
    from engine.model.identity import model_identity

    if not Speeds(paths.speeds_path()).meet(model_identity(path)):
        return None
    is_listed = any(path.is_relative_to(folder) for folder in folders)
    name = shlex.quote(model_name(path) if is_listed else str(path))
    return f"kvchat tune {name} finds the fastest settings for this model in 3 minutes"


def _speeds() -> Speeds:
    """Measured speeds, as `app.planning.user_speeds`, which is imported when it is first needed."""

    def of_chats() -> Mapping[str, ModelSpeed]:
        from app.planning import speeds_of_chats

        return speeds_of_chats()

    return Speeds(paths.speeds_path(), of_chats)


def _fit_context() -> "FitContext | None":
    from app.planning import user_planner
    from engine.planning.models import fit_context

    return fit_context(None, user_planner())


def _planned_bytes(configuration: Configuration) -> PlannedBytes | None:
    if configuration.server is not None:
        return None
    from app.planning import user_planner
    from engine.memory.terms import TermKind
    from engine.planning.planner import Setup

    planned = user_planner().estimator(Setup(configuration))(configuration)
    total = sum(device.total_bytes for device in planned.devices)
    extra = [TermKind.OVERHEAD]
    if configuration.backend == "torch":  # whose buffers are the tensors that stay
        extra.append(TermKind.COMPUTE)
    overhead = sum(device.term(kind).nbytes for device in planned.devices for kind in extra)
    reclaimable = sum(device.reclaimable_bytes for device in planned.devices)
    return PlannedBytes(total - overhead, overhead, reclaimable)
