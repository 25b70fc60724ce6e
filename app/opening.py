"""From the model that was asked for to an engine that has loaded it.

The chat, `run`, `compare` and `bench` all open a model in this way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app import paths
from app.config import Settings
from engine.configuration import (
    BackendName,
    Configuration,
    SamplingSettings,
)
from engine.errors import ModelFileError, PresetError
from engine.model.library import ModelNotFoundError, find_model, scan
from engine.model.starter import STARTER
from engine.servers import origin_of, saved_server, shown_origin

if TYPE_CHECKING:
    from engine.cache.report import CacheSettings
    from engine.planning.values import AskedThreads
    from engine.presets.preset import Preset
    from engine.process.blocking_client import BlockingClient
    from engine.process.client import WorkerClient


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model as it was typed; None leaves a value to preset, settings and machine."""

    model: str | None = None
    draft: str | None = None
    preset: str | None = None
    n_ctx: int | None = None
    n_threads: "AskedThreads" = None
    kv: str | None = None
    """K/V types: `auto`, one of both, or two as in `q8_0/q4_0`."""
    kv_budget: int | None = None
    """Maximum bytes of the cache."""
    backend: BackendName | None = None
    server: str | None = None
    """Address of a server that generates the replies; `model` is its name there."""
    mmproj: str | None = None
    """Path of a projector for images, or `off`."""
    rules: Mapping[str, object] = field(default_factory=dict)
    """Values by keys of a preset, which override the preset's (`preset.parse_rule`)."""

    def preset_rules(self) -> dict[str, object]:
        """All typed values by keys of a preset."""
        from engine.planning.cache_types import type_rules
        from engine.planning.values import thread_rules

        typed = type_rules(self.kv, self.kv_budget) | thread_rules(self.n_threads)
        named = {"n_ctx": self.n_ctx, "backend": self.backend, "mmproj": self.mmproj}
        typed |= {name: value for name, value in named.items() if value is not None}
        return typed | dict(self.rules)


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """The files and rules that a request names."""

    request: ModelRequest
    path: Path | None
    """The model; None where none was named."""
    draft: Path | None
    rules: "Preset | None"

    @property
    def server(self) -> str | None:
        """Address of the named server."""
        return self.request.server or (self.rules.server if self.rules else None)

    def target(
        self,
        settings: Settings,
        folders: Sequence[Path],
        last: Callable[[], str | None],
        *,
        servers: bool = True,
    ) -> Configuration | Path | None:
        """The server or the model to open: the named one, the default, the last used, or any.

        Without `servers`, a last chat at a server does not count.

        Raises:
            ModelFileError: the default model does not exist.
        """
        if self.server is not None:
            name = self.request.model or (self.rules.model if self.rules else None)
            sampling = self.sampling(settings)
            return Configuration.at_server(self.server, name, sampling, is_trusted=True)
        if self.path is not None:
            return self.path
        if settings.models.default:
            return find_model(settings.models.default, folders)
        address = last()
        served = remembered_server(address, self.sampling(settings)) if address else None
        return served if served and servers else _any_model(folders, address)

    def sampling(self, settings: Settings) -> SamplingSettings:
        """Sampling of the preset, else of the settings."""
        return self.rules.sampling.settings() if self.rules else settings.chat.sampling()

    def system_prompt(self, settings: Settings) -> str:
        """The instruction that a chat begins with: of the preset, else of the settings."""
        return (self.rules.system_prompt if self.rules else "") or settings.chat.system_prompt

    def configure(self, path: Path, settings: Settings) -> Configuration:
        """The configuration that a model is opened with: the one that `kvchat plan` plans."""
        from app.planning import known_quality
        from engine.model.identity import check_is_no_head
        from engine.planning.planner import Planner
        from engine.planning.request import PlanRequest, setup_of
        from engine.presets.preset import TRACE

        if self.draft is not None:
            check_is_no_head(self.draft)
        rules, typed = self._preset(settings), self.request.preset_rules()
        if rules.draft is not None:
            found = self.draft and rules.draft.model_copy(update={"model": str(self.draft)})
            rules = rules.model_copy(update={"draft": found})
        draft = str(self.draft) if self.draft and self.request.draft else None
        trace = typed.pop(TRACE, None)
        planner = Planner(quality=lambda model: known_quality(model, settings.cache_policy))
        asked = PlanRequest(str(path), draft=draft, rules=typed, must_fit=True)
        now = setup_of(asked, planner, rules).configuration
        return now if trace is None else replace(now, kv_trace=Path(str(trace)))

    def _preset(self, settings: Settings) -> "Preset":
        from app.planning import with_settings

        return with_settings(self.rules, settings)

    def types_note(self, configuration: Configuration, settings: Settings) -> str | None:
        """Why the cache has its types and what that rests on, where they were left open.

        Faults of saved plans, and old plans, follow on separate lines.
        """
        from app.planning import known_quality
        from engine.model.architecture import read_model
        from engine.planning.cache_types import open_types, types_text

        typed = self._preset(settings).model_copy(update=self.request.preset_rules())
        if open_types(typed) is None:
            return None
        known = known_quality(read_model(configuration.model_path), settings.cache_policy)
        return "\n".join((types_text(configuration, known), *known.notes))


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """The model or server of a chat, with its system prompt and limits."""

    configuration: Configuration
    system_prompt: str
    """System prompt of new chats; empty if there is none."""
    max_tokens: int | None
    """Maximum tokens of a reply; None: only the context limits it."""
    types_note: str | None = None
    """Why the cache has its types, if they were left open."""


def choose_model(request: ModelRequest, folders: Sequence[Path]) -> ChosenModel:
    """The files and rules that a request names."""
    rules = None
    if request.preset:
        from engine.presets.library import find_preset  # the screen opens without

        rules = find_preset(request.preset, paths.presets_dir())
    if request.server or (rules and rules.server):
        _check_server(request)
        return ChosenModel(request, None, None, rules)
    draft = request.draft or (rules.draft.model if rules and rules.draft else None)
    name = request.model or (rules.model if rules else None)
    return ChosenModel(
        request,
        find_model(name, folders) if name else None,
        find_model(draft, folders) if draft else None,
        rules,
    )


def _check_server(request: ModelRequest) -> None:
    """Refuse settings that a running server cannot change."""
    names = ("draft", "n_ctx", "n_threads", "kv", "kv_budget", "backend", "mmproj")
    typed = [
        f"--{name.removeprefix('n_').replace('_', '-')}"
        for name in names
        if getattr(request, name) is not None
    ]
    typed += [f"--set {key}" for key in request.rules]
    if typed:
        raise PresetError(
            f"the settings of a running server cannot be changed: leave out {', '.join(typed)}, or "
            "start the server with these settings"
        )


def open_model(request: ModelRequest, settings: Settings) -> OpenedModel:
    """The named model, else the default, the last used, or any, as the chat would open it."""
    folders = paths.model_folders(settings.models.folders)
    return _open(choose_model(request, folders), settings, folders, servers=True)


def open_here(request: ModelRequest, settings: Settings, what: str) -> OpenedModel:
    """A model file as `open_model` opens it, without a projector for images.

    Raises:
        PresetError: a server was named.
        EngineError: there is no such model or preset, or they do not go together.
    """
    folders = paths.model_folders(settings.models.folders)
    chosen = choose_model(request, folders)
    if chosen.server is not None:
        raise PresetError(
            f"{what} needs a local model file, not the server {shown_origin(chosen.server)}: "
            "specify a local model"
        )
    blind = replace(request, mmproj=request.mmproj or "off")
    return _open(replace(chosen, request=blind), settings, folders, servers=False)


def _open(
    chosen: ChosenModel, settings: Settings, folders: Sequence[Path], *, servers: bool
) -> OpenedModel:
    target = chosen.target(settings, folders, last_model, servers=servers)
    if target is None:
        raise ModelNotFoundError(
            "no model was found: `kvchat models install-starter` downloads a small model, `kvchat "
            "where` lists the searched folders"
        )
    system, max_tokens = chosen.system_prompt(settings), settings.chat.max_tokens
    if isinstance(target, Configuration):
        return OpenedModel(target, system, max_tokens)
    configuration = chosen.configure(target, settings)
    note = chosen.types_note(configuration, settings)
    return OpenedModel(configuration, system, max_tokens, note)


def remembered_server(address: str, sampling: SamplingSettings) -> Configuration | None:
    """Open the server that a chat used, by `Configuration.address`; None if it is a file.

    The API key of the environment is sent only if a preset of the user names the server.
    """
    found = saved_server(address)
    if found is None:
        return None
    url, model = found
    is_named = any(origin_of(url) == origin_of(each) for each, _ in preset_servers())
    return Configuration.at_server(url, model, sampling, is_trusted=is_named)


def preset_servers() -> list[tuple[str, str | None]]:
    """The servers that the user's presets name, each with its model."""
    from engine.presets.library import list_presets  # the screen opens without, when none is used

    presets = (entry.preset for entry in list_presets(paths.presets_dir()))
    return [(each.server, each.model) for each in presets if each is not None and each.server]


def last_model() -> str | None:
    """Address of the model of the chat used last; None if there is no chat.

    Raises:
        StoreError: the chats cannot be read.
    """
    from app.store.chats import ChatStore  # not needed where a model is named

    if not paths.database_path().is_file():
        return None
    with ChatStore(paths.database_path()) as store:
        return next((chat.model_path for chat in store.list_chats(limit=1)), None)


def _any_model(folders: Sequence[Path], last: str | None) -> Path | None:
    """The model used last, else the starter model, else any; None if there is none."""
    if last is not None and Path(last).is_file():
        return Path(last)
    starter = paths.models_dir() / STARTER.file_name
    if starter.is_file():
        return starter
    try:
        return find_model("starter", folders)
    except ModelFileError:
        usable = (entry for entry in scan(folders, cache_path=paths.header_cache_path()))
        return next((entry.path for entry in usable if entry.problem is None), None)


def new_client(cache: "CacheSettings | None" = None) -> "WorkerClient":
    """An engine's client that keeps its log and what it learns in kvchat's folders."""
    from engine.process.client import WorkerClient

    return WorkerClient(
        log_path=paths.worker_log_path(),
        costs_path=paths.costs_path(),
        cache=cache,
    )


@contextmanager
def loaded_engine(
    configuration: Configuration,
    note: Callable[[str], None],
    *,
    cache: "CacheSettings | None" = None,
) -> "Iterator[BlockingClient]":
    """An engine that has loaded a model; it ends with the block.

    Raises:
        WorkerError: the model cannot be loaded.
    """
    from engine.process.blocking_client import BlockingClient

    client = new_client(cache)
    engine = BlockingClient(
        client,
        on_restart=lambda stopped: note(f"{stopped.title}: {stopped.message}"),
        on_wait=note,
    )
    try:
        for text in engine.load(configuration).notes:
            note(text)
        yield engine
    finally:
        client.close()
