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
from engine.configuration import Configuration, PredictorName
from engine.errors import ModelFileError
from engine.model.library import find_model, scan
from engine.model.starter import STARTER, install_starter
from engine.presets.library import find_preset
from engine.presets.preset import Preset
from engine.worker_client import WorkerClient


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
    rules = find_preset(request.preset, locations.presets_dir()) if request.preset else None
    draft = _draft_path(request, rules, folders)
    name = request.model or (rules.model if rules else None)
    named = find_model(name, folders) if name else None
    store = ChatStore(locations.database_path())
    model = named or _usual_model(settings, folders, store)
    client = WorkerClient(
        log_path=locations.worker_log_path(), memory_path=locations.build_memory_path()
    )
    controller = ChatController(
        client,
        store,
        sampling=rules.sampling.settings() if rules else settings.chat.sampling(),
        system_prompt=(rules.system_prompt if rules else "") or settings.chat.system_prompt,
        max_tokens=settings.chat.max_tokens,
    )
    keymap = read_keymap(settings.keys, binding_ids)
    services = Services(
        configure=lambda path: configure(path, draft, rules, settings),
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


def _draft_path(request: Request, rules: Preset | None, folders: Sequence[Path]) -> Path | None:
    name = request.draft or (rules.draft.model if rules and rules.draft else None)
    return find_model(name, folders) if name else None


def configure(
    path: Path, draft: Path | None, rules: Preset | None, settings: Settings
) -> Configuration:
    """The configuration that a model is opened with.

    Args:
        path: The model.
        draft: A draft model that was named; it drafts unless a preset says otherwise.
        rules: A preset; without one the settings say who drafts and how tokens are drawn.
        settings: The user's settings.

    Raises:
        EngineError: If the model or the preset cannot be read, or they do not go together.
    """
    from engine.memory.hardware import devices
    from engine.memory.units import GIB
    from engine.model.architecture import read_model
    from engine.presets.resolve import Machine, resolve, with_settings

    draft_model = read_model(draft) if draft else None
    found = devices()
    if rules is not None and rules.vram_gib and any(device.kind == "gpu" for device in found):
        found = devices(vram_bytes=(round(rules.vram_gib * GIB),))
    configuration = resolve(rules, read_model(path), Machine(found), draft=draft_model)
    if rules is None:
        speculation = settings.speculation.speculation()
        if draft is not None:
            speculation = replace(speculation, predictor=PredictorName.DRAFT)
        configuration = with_settings(
            configuration, speculation=speculation, sampling=settings.chat.sampling()
        )
    return replace(
        configuration,
        n_threads=configuration.n_threads or settings.engine.n_threads,
        use_extra_buffers=settings.engine.use_extra_buffers,
    )


def planned_bytes(configuration: Configuration) -> int:
    """What the estimate says that llama.cpp allocates on all devices together.

    Raises:
        EngineError: If a model file cannot be read.
    """
    from engine.memory.estimate import TermKind, estimate
    from engine.memory.hardware import devices
    from engine.model.architecture import read_model

    draft = read_model(configuration.draft.model_path) if configuration.draft else None
    planned = estimate(read_model(configuration.model_path), configuration, devices(), draft=draft)
    # The overhead of the process is outside of llama.cpp's buffers, which this is compared with.
    return sum(
        term.nbytes
        for device in planned.devices
        for kind, term in device.terms.items()
        if kind is not TermKind.OVERHEAD
    )
