"""Lists of models with verdicts: this machine and the catalogue; lists of files."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import ClassVar, Literal

from textual import work
from textual.binding import Binding, BindingType
from textual.worker import get_current_worker

from app import format as fmt
from app.library import favourites, is_used, mark_favourite, removal_of
from app.render.lines import Line, Run
from app.render.plan_lists import LEGEND, model_option_line
from app.sanitize import visible
from app.screens.dialogs import PickScreen, ask, confirm, in_thread
from app.threads import call_if_open
from app.widgets.bars import TabStrip
from app.widgets.select_list import Row
from engine.configuration import Configuration
from engine.errors import EngineError
from engine.model.architecture import Model
from engine.model.hub import parse_hub_name
from engine.model.library import ModelEntry
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
MAX_DRAFTS = 3
"""Draft models that the note of a model names."""
ADD = "\0add"
"""Key of the row that installs the starter or opens a file."""
Purpose = Literal["load", "plan"]


def file_facts(entry: ModelEntry) -> tuple[str, ...]:
    """Known facts of a model: file type, size, context length, architecture."""
    context = f"ctx {fmt.context_size(entry.n_ctx_train)}" if entry.n_ctx_train else ""
    return entry.file_type or "", fmt.nbytes(entry.nbytes), context, entry.architecture or ""


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
        self._now = str(now)
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
        """Whether the user moved the highlight: it then stays on its row."""

    def on_mount(self) -> None:
        super().on_mount()
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
        index = CATALOG_QUANTIZATIONS.index(self._quantization) + step
        if self._is_catalog and 0 <= index < len(CATALOG_QUANTIZATIONS):
            self._quantization = CATALOG_QUANTIZATIONS[index]
            self._fill()

    # --- the rows ---

    @property
    def _is_catalog(self) -> bool:
        return self.query_one(TabStrip).active == 1

    def _fill(self) -> None:
        self._options = ()
        self.awaits_rows = not self._is_catalog
        self.show_all((), note="reading the catalogue …" if self._is_catalog else "looking …")
        self._verify(is_catalog=self._is_catalog)

    @work(thread=True, exclusive=True, group="verify")
    def _verify(self, *, is_catalog: bool) -> None:
        """Show the names, then the same models with their verdicts."""
        if is_catalog:
            note = f"quantisation {self._quantization} (◂ ▸) · models that fit, fastest first"
            named, entries = catalog_names(self._quantization), []
        else:
            note, marked = folders_text(self._folders), favourites()
            entries = sorted(self._scan(), key=lambda entry: entry.identity not in marked)
            named = [_unverified(entry, is_favourite=entry.identity in marked) for entry in entries]
            self._entries = {str(entry.path): entry for entry in entries}
        servers = [] if is_catalog else list(map(_server_option, self._servers()))
        if get_current_worker().is_cancelled:
            return
        if named:
            call_if_open(self, self._show, [*named, *servers], f"{note} · checking …")
        context = self._fit_context()
        if context is not None:
            if is_catalog:
                verified = catalog_options(self._quantization, context, _catalog_facts)
            else:
                verified = library_options(entries, [each.facts for each in named], context)
            named = []
            for option in verified:
                if get_current_worker().is_cancelled:
                    return
                named.append(option)
        options = rank_options(named) if is_catalog else [*named, *servers]
        call_if_open(self, self._show_last, options, note)

    def _show_last(self, options: list[ModelOption], note: str) -> None:
        self._show(options, note if options else f"no model was found {note}")
        self.awaits_rows = False
        if options or self._is_catalog:
            return
        if self._add is not None:
            text = "Install the starter model, or open a file by its path"
            self.show_all([Row.of(ADD, Run("  "), Run(text, "accent"))], note=self._note)
        elif not self._has_chosen_tab:
            self.action_next_tab()

    def _show(self, options: list[ModelOption], note: str) -> None:
        self._options, self._list_note, now = options, note, self._now
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

    # --- the highlighted model ---

    @property
    def _marked_entry(self) -> ModelEntry | None:
        return self._entries.get(self.marked or "")

    def on_select_list_marked(self) -> None:
        self._has_moved = True
        self._describe_marked()

    def _describe_marked(self) -> None:
        entry = self._marked_entry
        if self._is_catalog:
            marked = next((each for each in self._options if each.key == self.marked), None)
            aliases = [fact for fact in (marked.facts if marked else ()) if fact[:5] == "also "]
            self.show_note(" · ".join((*aliases, self._list_note)))
        elif entry is not None and not entry.problem:
            others = list(self._entries.values())
            show = partial(self._show_description, self.marked)
            in_thread(self, "describe", partial(_description, entry, others), show)

    def _show_description(self, key: str | None, text: str) -> None:
        if key == self.marked:
            self.show_note(text)

    def picked(self, key: str) -> None:
        """Close with a model; ask the hub first to load one of the catalogue."""
        if key == ADD:
            self.action_add()
            return
        entry, name = self._entries.get(key), parse_hub_name(key)
        if self._purpose == "load" and entry is not None and entry.problem:
            self.notify(entry.problem, severity="error")
            return
        is_plannable = self._purpose == "plan" and (name is None or name.file is not None)
        if entry is not None or saved_server(key) or is_plannable:
            self.dismiss(key)
        else:
            from app.screens.downloads import HubScreen  # with the first question to the hub

            ask(self, HubScreen(key, purpose=self._purpose), self.dismiss)

    def typed_row(self, text: str) -> Row[str] | None:
        """A row for a typed name of a hub repository or of a file in one."""
        if parse_hub_name(text) is None:
            return next((row for row in self._all if row.key == ADD), None)
        name, where = Run(visible(text), "strong"), Run("  on the Hugging Face hub", "muted")
        return Row.of(text, Run("  "), name, where)

    def action_favourite(self) -> None:
        entry = self._marked_entry
        if entry is not None and entry.identity is not None:
            mark_favourite(entry.identity, is_favourite=entry.identity not in favourites())
            self._fill()

    def action_locate(self) -> None:
        if (entry := self._marked_entry) is not None:
            self.notify(str(entry.path.parent), title=entry.name)

    def action_remove(self) -> None:
        entry = self._marked_entry
        if entry is None:
            return
        removal = removal_of(entry.path)
        if is_used(removal, self._loaded):
            self.notify("This model is loaded: load another model before you delete this one.")
            return

        def remove() -> None:
            try:
                removal.run()
            finally:
                self._fill()

        confirm(self, removal.question, remove)

    def action_add(self) -> None:
        if self._add is not None:
            self.dismiss(None)
            # A closed screen receives no result of a screen that it opens.
            self.app.call_later(self._add)


def _unverified(entry: ModelEntry, *, is_favourite: bool) -> ModelOption:
    facts = ("★" if is_favourite else "", *file_facts(entry))
    problem = entry.problem or ""
    return ModelOption(str(entry.path), entry.name, facts, problem=problem, speed=entry.speed)


def _server_option(address: str) -> ModelOption:
    facts = ("server", shown_origin(address.partition("#")[0]))
    return ModelOption(address, model_title(address), facts)


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
            Row.of(
                entry.path,
                *_file_line(entry, is_now=entry.path in self._now),
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


def _file_line(entry: ModelEntry, *, is_now: bool) -> Line:
    """A file with its facts, or its problem; a point marks a file in use."""
    text = entry.problem or " · ".join(filter(None, file_facts(entry)))
    return (
        Run("• " if is_now else "  ", "accent"),
        Run(visible(entry.name), "muted" if entry.problem else "strong"),
        Run(f"  {visible(text)}", "bad" if entry.problem else "muted"),
    )
