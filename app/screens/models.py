"""Lists of models with verdicts: this machine and the catalogue; lists of files."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import ClassVar, Literal

from textual import work
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.worker import get_current_worker

from app import format as fmt
from app.library import favourites, is_used, mark_favourite, removal_of
from app.render.lines import Line, Run, clipped
from app.render.plan_lists import LEGEND, model_option_line
from app.sanitize import visible
from app.screens.dialogs import PickScreen, ask, confirm, in_thread, report
from app.threads import call_if_open
from app.widgets.bars import TabStrip
from app.widgets.select_list import Row
from engine.configuration import Configuration
from engine.errors import EngineError
from engine.model.architecture import Model
from engine.model.hub import parse_hub_name
from engine.model.library import LibraryScan, ModelEntry
from engine.model.ollama import model_title
from engine.planning.models import (
    CATALOG_QUANTIZATIONS,
    FitContext,
    ModelOption,
    catalog_names,
    catalog_options,
    library_options,
    rank_options,
)
from engine.planning.pairs import options_of
from engine.servers import saved_server, shown_origin

HEIGHTS = [(0, "-low"), (26, "-tall")]
TABS = ("on this machine", "catalogue")
BATCH = 6
"""Models that are verified before they are painted."""
CATALOG_BATCH = 32
PROGRESS_EVERY_S = 0.2
MAX_DRAFTS = 3
"""Draft models that the note of a model names."""
Purpose = Literal["load", "plan"]


def file_facts(entry: ModelEntry) -> list[str]:
    """Known facts of a model: file type, size, context length, architecture."""
    facts = [entry.file_type or "", fmt.nbytes(entry.nbytes)]
    facts += [f"ctx {fmt.context_size(entry.n_ctx_train)}"] if entry.n_ctx_train else []
    return [*facts, entry.architecture or ""]


def file_line(entry: ModelEntry, width: int, *, is_now: bool) -> Line:
    """A file with its facts, or what is wrong with it; a point marks a file in use."""
    text = entry.problem or " · ".join(filter(None, file_facts(entry)))
    runs = (
        Run("• " if is_now else "  ", "accent"),
        Run(visible(entry.name), "muted" if entry.problem else "strong"),
        Run(f"  {visible(text)}", "bad" if entry.problem else "muted"),
    )
    return clipped(runs, width)


ADD = "\0add"
"""Key of the row that leads to where a model is installed or opened."""


def folders_text(folders: Sequence[Path]) -> str:
    """The first two searched folders, and how many more."""
    named = ", ".join(visible(str(folder)) for folder in folders[:2])
    more = len(folders) - 2
    return f"in {named}{f' and {more} more (kvchat where)' if more > 0 else ''}"


class ModelsScreen(PickScreen[str]):
    """Models with verdicts, to load or to plan; the result is a path or a catalogue's name.

    A model of the catalogue is downloaded from the hub before it is loaded.
    """

    VERTICAL_BREAKPOINTS = HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "next_tab", "List", id="models-tab", priority=True,
                tooltip="Switch between the models on this machine and the catalogue"),
        Binding("left", "quantize(-1)", "Smaller", id="models-smaller", priority=True,
                tooltip="Show catalogue models in a smaller quantisation"),
        Binding("right", "quantize(1)", "Larger", id="models-larger", priority=True,
                tooltip="Show catalogue models in a larger quantisation"),
        Binding("ctrl+s", "favourite", "Favourite", id="models-favourite", priority=True,
                tooltip="Mark the model as a favourite to list it first, or unmark it"),
        Binding("ctrl+l", "locate", "Folder", id="models-folder", priority=True,
                tooltip="Show the model's folder"),
        Binding("delete", "remove", "Delete", id="models-delete", priority=True,
                tooltip="Delete the model's files, after confirmation"),
        Binding("ctrl+n", "add", "Add", id="models-add", priority=True,
                tooltip="Install the starter model, or open a file by its path"),
    ]  # fmt: skip

    def __init__(
        self,
        scan: Callable[[], Sequence[ModelEntry]],
        folders: Sequence[Path],
        context: Callable[[], FitContext | None],
        now: str | Path | None,
        *,
        loaded: Configuration | None = None,
        purpose: Purpose = "plan",
        servers: Callable[[], Sequence[str]] = tuple,
        add: Callable[[], None] | None = None,
        tab: int = 0,
    ) -> None:
        """List the models of this machine, or the catalogue if it has none.

        Args:
            scan: Finds the models of this machine; called in a thread, as is `context`.
            folders: The searched folders, for the note.
            context: Returns what models are verified with; None verifies none.
            now: The loaded or planned model.
            loaded: The configuration whose files cannot be deleted.
            purpose: What the chosen model is for.
            servers: Returns servers used before, as `Configuration.address` writes them.
            add: Opens the dialog that installs the starter or opens a file.
            tab: Which list is shown first.
        """
        adds = "ctrl+n adds a file · " if add is not None else ""
        verb = "loads" if purpose == "load" else "plans"
        super().__init__(
            "models" if purpose == "load" else "plan which model?",
            noun="model",
            hint=f"{LEGEND}\nenter {verb} · tab other list · type to search (hf:owner/name: hub)\n"
            f"{adds}ctrl+s favourite · ctrl+l folder · del deletes",
            tabs=(TabStrip(TABS, "tab", id="models-tabs"),),
        )
        self._scan = scan
        self._folders = folders
        self._fit_context = context
        self._now = now
        self._loaded = loaded
        self._purpose = purpose
        self._servers = servers
        self._add = add
        self._quantization = "Q4_K_M"
        self._first_tab = tab
        self._has_chosen_tab = tab > 0
        self._entries: dict[str, ModelEntry] = {}
        self._options: Sequence[ModelOption] = ()
        self._list_note = ""
        self._has_moved = False
        """Whether the user marked a row: the mark stays there."""
        self._progress: Timer | None = None

    def on_mount(self) -> None:
        super().on_mount()
        if isinstance(self._scan, LibraryScan):
            self._progress = self.set_interval(PROGRESS_EVERY_S, self._show_progress)
        if self._first_tab:
            self.query_one(TabStrip).active = self._first_tab
        else:
            self._fill()

    def on_tab_strip_chosen(self) -> None:
        self._fill()

    def action_next_tab(self) -> None:
        self._has_chosen_tab = True
        self.query_one(TabStrip).next()

    def action_quantize(self, step: int) -> None:
        if not self._is_catalog:
            return
        index = CATALOG_QUANTIZATIONS.index(self._quantization) + step
        if 0 <= index < len(CATALOG_QUANTIZATIONS):
            self._quantization = CATALOG_QUANTIZATIONS[index]
            self._fill()

    # --- the rows ---

    @property
    def _is_catalog(self) -> bool:
        return self.query_one(TabStrip).active == 1

    def _show_progress(self) -> None:
        scan = self._scan
        is_shown = self._is_catalog or self._options
        if isinstance(scan, LibraryScan) and scan.n_all and not is_shown:
            self.show_all((), note=f"looking … {scan.n_done} of {scan.n_all} files")

    def _fill(self) -> None:
        self._options = ()
        self.awaits_rows = not self._is_catalog
        if self._is_catalog:
            self.show_all((), note="reading the catalogue …")
        self._verify(is_catalog=self._is_catalog)

    def _catalog(self) -> Iterator[ModelOption]:
        context = self._fit_context()
        if context is not None:
            yield from catalog_options(self._quantization, context, _catalog_facts)

    def _library(self) -> Iterator[ModelOption]:
        marked = favourites()
        entries = sorted(self._scan(), key=lambda entry: entry.identity not in marked)
        self._entries = {str(entry.path): entry for entry in entries}
        facts = [("★" if entry.identity in marked else "", *file_facts(entry)) for entry in entries]
        context = self._fit_context()
        if context is not None:
            yield from library_options(entries, facts, context)
        else:
            for entry, shown in zip(entries, facts, strict=True):
                yield ModelOption(
                    str(entry.path), entry.name, shown, problem=entry.problem or "",
                    speed=entry.speed,
                )  # fmt: skip
        for address in self._servers():
            url = address.partition("#")[0]
            yield ModelOption(address, model_title(address), ("server", shown_origin(url)))

    @work(thread=True, exclusive=True, group="verify")
    def _verify(self, *, is_catalog: bool) -> None:
        """Verify the models one after the other, and list the names of the catalogue first."""
        worker, found, rest = get_current_worker(), list[ModelOption](), dict[str, ModelOption]()
        note = folders_text(self._folders)
        if is_catalog:
            note = f"quantisation {self._quantization} (◂ ▸) · models that fit, fastest first"
            rest = {option.key: option for option in catalog_names(self._quantization)}
            call_if_open(self, self._show, [*rest.values()], f"{note} · 0 checked …")
        for option in self._catalog() if is_catalog else self._library():
            if worker.is_cancelled:
                return
            found.append(option)
            rest.pop(option.key, None)
            if len(found) % (CATALOG_BATCH if is_catalog else BATCH) == 0:
                shown = [*(rank_options(found) if is_catalog else found), *rest.values()]
                call_if_open(self, self._show, shown, f"{note} · {len(found)} checked …")
        call_if_open(self, self._show_last, rank_options(found) if is_catalog else found, note)

    def _show_last(self, options: list[ModelOption], note: str) -> None:
        self._show(options, note if options else f"no model was found {note}")
        if not options and not self._is_catalog:
            self._offer_others()
        self.awaits_rows = self._takes_next = False

    def _offer_others(self) -> None:
        """Without a model on this machine, offer ways to get one, or the catalogue."""
        if self._add is not None:
            words = "Install the starter model, or open a file by its path"
            line = partial(clipped, (Run("  "), Run(words, "accent")))
            self.show_all([Row(ADD, line)], note=self._note)
        elif not self._has_chosen_tab:
            self.action_next_tab()

    def _show(self, options: list[ModelOption], note: str) -> None:
        if self._progress is not None and not self._is_catalog:
            self._progress.stop()
        self._options, self._list_note = options, note
        now = str(self._now)
        rows = [
            Row(
                option.key,
                partial(model_option_line, option, is_now=option.key == now),
                words=f"{option.name} {' '.join(option.facts)}".lower(),
            )
            for option in options
        ]
        mark = None
        if options and not self._has_moved:
            mark = now if any(option.key == now for option in options) else options[0].key
        self.show_all(rows, note=note, mark=mark)
        self._describe_marked()

    # --- the marked model ---

    def on_select_list_marked(self) -> None:
        self._has_moved = True
        self._describe_marked()

    def _describe_marked(self) -> None:
        if self._is_catalog:
            marked = next((each for each in self._options if each.key == self.marked), None)
            facts = () if marked is None else marked.facts
            also = next((fact for fact in facts if fact.startswith("also ")), "")
            self.show_note(" · ".join(filter(None, (also, self._list_note))))
        entry = self._entries.get(self.marked or "")
        if entry is not None and not self._is_catalog and not entry.problem:
            others = list(self._entries.values())
            show = partial(self._show_description, str(entry.path))
            in_thread(self, "describe", partial(_description, entry, others), show)

    def _show_description(self, key: str, text: str) -> None:
        if key == self.marked:
            self.show_note(text)

    def picked(self, key: str) -> None:
        """Close with a model; ask the hub first to load one of the catalogue."""
        if key == ADD:
            self.action_add()
            return
        entry = self._entries.get(key)
        if self._purpose == "load" and entry is not None and entry.problem:
            self.notify(entry.problem, severity="error")
            return
        asked = parse_hub_name(key)
        is_plannable = self._purpose == "plan" and (asked is None or asked.file is not None)
        if key in self._entries or saved_server(key) or is_plannable:
            self.dismiss(key)
        else:
            from app.screens.downloads import HubScreen  # with the first question to the hub

            ask(self, HubScreen(key, purpose=self._purpose), self.dismiss)

    def typed_row(self, text: str) -> Row[str] | None:
        """A row for a typed name of a hub repository or of a file in one."""
        if parse_hub_name(text) is None:
            return next((row for row in self._all if row.key == ADD), None)
        line = (Run("  "), Run(visible(text), "strong"), Run("  on the Hugging Face hub", "muted"))
        return Row(text, partial(clipped, line))

    def action_favourite(self) -> None:
        entry = self._entries.get(self.marked or "")
        if entry is not None and entry.identity is not None:
            mark_favourite(entry.identity, is_favourite=entry.identity not in favourites())
            self._fill()

    def action_locate(self) -> None:
        entry = self._entries.get(self.marked or "")
        if entry is not None:
            self.notify(str(entry.path.parent), title=entry.name)

    def action_remove(self) -> None:
        entry = self._entries.get(self.marked or "")
        if entry is None:
            return
        removal = removal_of(entry.path)
        if is_used(removal, self._loaded):
            self.notify("This model is loaded: load another model before you delete this one.")
            return

        def remove() -> None:
            try:
                removal.run()
            except EngineError as error:
                report(self, error)
            self._fill()

        confirm(self, removal.question, remove)

    def action_add(self) -> None:
        if self._add is not None:
            self.dismiss(None)
            # A screen that is gone hears no answer of one that it opens.
            self.app.call_later(self._add)


def _catalog_facts(model: Model) -> tuple[str, ...]:
    n_parameters = sum(prod(tensor.shape) for tensor in model.file.tensors)
    n_ctx_train = model.architecture.n_ctx_train
    return (f"{n_parameters / 1e9:.3g}B", f"ctx {fmt.context_size(n_ctx_train)}")


def _description(entry: ModelEntry, others: Sequence[ModelEntry]) -> str:
    """Folder, copies, MTP head and compatible draft models of a model, from its header."""
    from engine.model.architecture import read_model

    parts = [visible(str(entry.path.parent))]
    if entry.copies:
        parts.append(f"also in {', '.join(visible(str(path.parent)) for path in entry.copies)}")
    try:
        model = read_model(entry.path)
        found = options_of(model, others, entry, "cpu")
    except EngineError:
        return " · ".join(parts)
    if model.file.integer(f"{model.file.architecture}.nextn_predict_layers"):
        parts.append("drafts with the built-in MTP head")
    names = [visible(draft.name) for draft in found.drafts if (draft.share or 1) < 1]
    if names:
        parts.append(f"draft models: {', '.join(names[:MAX_DRAFTS])}")
    return " · ".join(parts)


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
            look: Finds them; called in a thread.
            folders: The searched folders, for the note.
            now: The files in use.
        """
        super().__init__(f"which {noun}?", note="looking …", noun=noun)
        self._look = look
        self._folders = folders
        self._now = now
        self._problems: dict[Path, str] = {}

    def on_mount(self) -> None:
        super().on_mount()
        in_thread(self, "look", self._look, self._show)

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
        self.show_all(rows, note=folders_text(self._folders))

    def picked(self, key: Path) -> None:
        """Close with a file that can be read."""
        if key in self._problems:
            self.notify(self._problems[key], severity="error")
        else:
            self.dismiss(key)
