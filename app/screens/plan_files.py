"""Files to choose one from: a draft model, a projector, an adapter, a model for a preset."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from textual import work

from app import format as fmt
from app.render.lines import Line, Run, clipped
from app.sanitize import visible
from app.screens.hand_back import hand_back
from app.screens.plan_pick import PickScreen, Row
from engine.model.library import ModelEntry


class FilesScreen(PickScreen[Path]):
    """Gives the file that was chosen, None to stay."""

    def __init__(
        self,
        name: str,
        look: Callable[[], Sequence[ModelEntry]],
        folders: Sequence[Path],
        now: Sequence[Path] = (),
    ) -> None:
        """List files.

        Args:
            name: What they are, in the singular.
            look: Finds them; called away from the screen.
            folders: Where it looks, for the note.
            now: Those that are chosen already.
        """
        super().__init__()
        self._noun = name
        self._look = look
        self._folders = folders
        self._now = now
        self._problems: dict[Path, str] = {}

    @property
    def title_text(self) -> str:
        return f"which {self._noun}?"

    @property
    def noun(self) -> str:
        return self._noun

    def on_mount(self) -> None:
        super().on_mount()
        self.show_note("looking …")
        self._find()

    @work(thread=True, exclusive=True, group="look")
    def _find(self) -> None:
        hand_back(self, self._show, self._look())

    def _show(self, entries: Sequence[ModelEntry]) -> None:
        self._problems = {entry.path: entry.problem for entry in entries if entry.problem}
        rows = [
            Row(entry.path, entry.name.lower(), partial(_line, entry, entry.path in self._now))
            for entry in entries
        ]
        folders = ", ".join(visible(str(folder)) for folder in self._folders)
        self.show_all(rows, note=f"in {folders}")

    def picked(self, key: Path) -> None:
        """Take a file that can be read."""
        if key in self._problems:
            self.notify(self._problems[key], severity="error", markup=False)
        else:
            self.dismiss(key)


def _line(entry: ModelEntry, is_now: bool, width: int) -> Line:
    facts = [entry.file_type or "", fmt.nbytes(entry.nbytes)]
    if entry.n_ctx_train:
        facts.append(f"ctx {fmt.context_size(entry.n_ctx_train)}")
    text = entry.problem or " · ".join(filter(None, facts))
    style = "bad" if entry.problem else "muted"
    runs = (
        Run("• " if is_now else "  ", "accent"),
        Run(visible(entry.name), "muted" if entry.problem else "strong"),
        Run(f"  {visible(text)}", style),
    )
    return clipped(runs, width)
