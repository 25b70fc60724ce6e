"""Files to choose one from: the model to load; a draft model, projector, adapter or model."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Static

from app import format as fmt
from app.render.lines import Line, Run, clipped
from app.sanitize import visible
from app.screens.dialogs import PickScreen
from app.threads import call_if_open
from app.widgets.select_list import Row, SelectList
from engine.model.library import LibraryScan, ModelEntry

HEIGHTS = [(0, "-low"), (20, "-tall")]
PROGRESS_EVERY_S = 0.2


def file_facts(entry: ModelEntry) -> list[str]:
    """File type, size, context length and measured speed of a model, as far as they are known."""
    facts = [entry.file_type or "", fmt.nbytes(entry.nbytes)]
    facts += [f"ctx {fmt.context_size(entry.n_ctx_train)}"] if entry.n_ctx_train else []
    return facts + ([f"{fmt.rate(entry.speed.decode_tps)} tok/s here"] if entry.speed else [])


def file_line(entry: ModelEntry, width: int, *, is_now: bool) -> Line:
    """A file, what it is, or what is wrong with it; a point before those that are in use."""
    text = entry.problem or " · ".join(filter(None, file_facts(entry)))
    runs = (
        Run("• " if is_now else "  ", "accent"),
        Run(visible(entry.name), "muted" if entry.problem else "strong"),
        Run(f"  {visible(text)}", "bad" if entry.problem else "muted"),
    )
    return clipped(runs, width)


class ModelsScreen(ModalScreen[Path | None]):
    """The models in the folders; the result is the one to load."""

    VERTICAL_BREAKPOINTS = HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close", id="models-close", tooltip="Stay with this model"),
        Binding("a", "add", "Add", id="models-add",
                tooltip="Install the starter model, or open a file by its path"),
        Binding("j", "app.simulate_key('down')", "Down", id="models-down", show=False,
                tooltip="Next model"),
        Binding("k", "app.simulate_key('up')", "Up", id="models-up", show=False,
                tooltip="Model above"),
    ]  # fmt: skip

    def __init__(
        self,
        scan: Callable[[], Sequence[ModelEntry]],
        folders: Sequence[Path],
        loaded: Path | None,
        *,
        add: Callable[[], None] | None = None,
    ) -> None:
        """List the models of some folders.

        Args:
            scan: Finds them.
            folders: Where it looks.
            loaded: The model to mark.
            add: Leads to where a model can be installed or opened by its path.
        """
        super().__init__()
        self._add = add
        self._scan = scan
        self._folders = folders
        self._loaded = loaded
        self._entries: Sequence[ModelEntry] = ()
        self._progress: Timer | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static("models", classes="title", markup=False)
            yield SelectList(click_picks=True, id="models")
            yield Static("looking …", id="where", classes="hint", markup=False)
            yield Static("", id="models-keys", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(SelectList).focus()
        self._show_keys("enter loads · f2 in the chat plans it first")
        if isinstance(self._scan, LibraryScan):
            self._progress = self.set_interval(PROGRESS_EVERY_S, self._show_progress)
        self._find()

    def _show_progress(self) -> None:
        if isinstance(self._scan, LibraryScan) and self._scan.n_all:
            text = f"looking … {self._scan.n_done} of {self._scan.n_all} files"
            self.query_one("#where", Static).update(text)

    @work(thread=True, exclusive=True)
    def _find(self) -> None:
        entries = self._scan()
        call_if_open(self, self._show, entries)

    def _show(self, entries: Sequence[ModelEntry]) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._entries = entries
        if not entries:
            self._show_keys("f2 in the chat plans one of the catalogue")
        rows = [
            Row(
                entry.path,
                partial(file_line, entry, is_now=entry.path == self._loaded),
                is_enabled=not entry.problem,
            )
            for entry in entries
        ]
        self.query_one(SelectList).show_rows(rows, self._loaded)
        found = fmt.counted(len(entries), "model") if entries else "no model was found"
        folders = ", ".join(str(folder) for folder in self._folders)
        self.query_one("#where", Static).update(f"{found} in {folders}")

    def _show_keys(self, text: str) -> None:
        add = "a adds one: the starter, or a file by its path · " if self._add else ""
        self.query_one("#models-keys", Static).update(f"{add}{text} · esc stays")

    def action_add(self) -> None:
        """Go to where a model can be added."""
        if self._add is not None:
            self.dismiss(None)
            self._add()

    def on_select_list_picked(self, message: SelectList.Picked) -> None:
        self.dismiss(self._entries[message.index].path)


class FilesScreen(PickScreen[Path]):
    """Files to choose one from; typing narrows them down."""

    def __init__(
        self,
        noun: str,
        look: Callable[[], Sequence[ModelEntry]],
        folders: Sequence[Path],
        now: Sequence[Path] = (),
    ) -> None:
        """List files.

        Args:
            noun: What they are, in the singular.
            look: Finds them; called away from the screen.
            folders: Where it looks, for the note.
            now: Those that are chosen already.
        """
        super().__init__(f"which {noun}?", note="looking …", noun=noun)
        self._look = look
        self._folders = folders
        self._now = now
        self._problems: dict[Path, str] = {}

    def on_mount(self) -> None:
        super().on_mount()
        self._find()

    @work(thread=True, exclusive=True, group="look")
    def _find(self) -> None:
        call_if_open(self, self._show, self._look())

    def _show(self, entries: Sequence[ModelEntry]) -> None:
        self._problems = {entry.path: entry.problem for entry in entries if entry.problem}
        rows = [
            Row(
                entry.path,
                partial(file_line, entry, is_now=entry.path in self._now),
                words=entry.name.lower(),
            )
            for entry in entries
        ]
        folders = ", ".join(visible(str(folder)) for folder in self._folders)
        self.show_all(rows, note=f"in {folders}")

    def picked(self, key: Path) -> None:
        """Close with a file that can be read."""
        if key in self._problems:
            self.notify(self._problems[key], severity="error")
        else:
            self.dismiss(key)
