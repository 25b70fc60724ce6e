"""The list of models that were found: switch to another one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app import format as fmt
from app.sanitize import visible
from app.screens.hand_back import hand_back
from engine.model.library import LibraryScan, ModelEntry

HEIGHTS = [(0, "-low"), (20, "-tall")]
TELL_EVERY_S = 0.2


class ModelsScreen(ModalScreen[Path | None]):
    """Gives the model to load, None to stay."""

    VERTICAL_BREAKPOINTS = HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close", id="models-close", tooltip="Stay with this model"),
        Binding(
            "a",
            "add",
            "Add",
            id="models-add",
            tooltip="Install the starter model, or open a file by its path",
        ),
        Binding("j", "move(1)", "Down", id="models-down", show=False, tooltip="Next model"),
        Binding("k", "move(-1)", "Up", id="models-up", show=False, tooltip="Model above"),
    ]

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
        self._telling: Timer | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static("models", classes="title", markup=False)
            yield OptionList(id="models")
            yield Static("looking …", id="where", classes="hint", markup=False)
            yield Static("", id="models-keys", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self._say_keys("enter loads · f2 in the chat plans it first")
        if isinstance(self._scan, LibraryScan):
            self._telling = self.set_interval(TELL_EVERY_S, self._tell)
        self._find()

    def _tell(self) -> None:
        if isinstance(self._scan, LibraryScan) and self._scan.n_all:
            text = f"looking … {self._scan.n_done} of {self._scan.n_all} files"
            self.query_one("#where", Static).update(text)

    @work(thread=True, exclusive=True)
    def _find(self) -> None:
        entries = self._scan()
        hand_back(self, self._show, entries)

    def _show(self, entries: Sequence[ModelEntry]) -> None:
        if self._telling is not None:
            self._telling.stop()
        self._entries = entries
        if not entries:
            self._say_keys("f2 in the chat plans one of the catalogue")
        models = self.query_one(OptionList)
        models.set_options(
            [
                Option(_prompt(entry, self._loaded), disabled=bool(entry.problem))
                for entry in entries
            ]
        )
        paths = [entry.path for entry in entries]
        if self._loaded in paths:
            models.highlighted = paths.index(self._loaded)
        found = fmt.counted(len(entries), "model") if entries else "no model was found"
        folders = ", ".join(str(folder) for folder in self._folders)
        self.query_one("#where", Static).update(f"{found} in {folders}")

    def _say_keys(self, text: str) -> None:
        add = "a adds one: the starter, or a file by its path · " if self._add else ""
        self.query_one("#models-keys", Static).update(f"{add}{text} · esc stays")

    def action_add(self) -> None:
        """Go to where a model can be added."""
        if self._add is not None:
            self.dismiss(None)
            self._add()

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(self._entries[message.option_index].path)

    def action_move(self, step: int) -> None:
        """Go down or up."""
        models = self.query_one(OptionList)
        if step > 0:
            models.action_cursor_down()
        else:
            models.action_cursor_up()


def _prompt(entry: ModelEntry, loaded: Path | None) -> Content:
    marker = "▸ " if entry.path == loaded else "  "
    facts = [entry.file_type or "", fmt.nbytes(entry.nbytes)]
    if entry.n_ctx_train:
        facts.append(f"ctx {fmt.context_size(entry.n_ctx_train)}")
    if entry.problem:
        facts = [entry.problem]
    text = " · ".join(visible(fact) for fact in facts if fact)
    return Content.assemble(marker, visible(entry.name), "  ", (text, "$text-muted"))
