"""`kvchat tune` from a model to a preset: what is measured, what is shown, and what is kept."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from app import paths
from app.config import Settings
from app.opening import ModelRequest, choose_model, open_here
from engine.errors import PresetError, PresetFileError
from engine.experiment.settings import Scope
from engine.experiment.timing import TimingProcess
from engine.experiment.tuner import Outcome, TrialResult, Tuner, TuningProgress
from engine.generation.cpu_load import ProcessorLoad, threads_beside
from engine.memory.hardware import usable_cores
from engine.model.architecture import read_model
from engine.model.identity import model_identity
from engine.model.speeds import ModelSpeed, Speeds
from engine.presets.library import find_preset, made_preset, named_preset, save_preset
from engine.presets.preset import Preset, SamplingRules

MARK = "Measured by kvchat tune"
"""How the description of a preset begins that a later run may replace."""
NOT_TORCH = (
    "kvchat tune measures settings of llama.cpp, not of the torch backend: leave out --backend "
    "torch and presets with it; docs/torch.md lists fast settings for torch"
)


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What to tune, for how long, and what to write."""

    model: ModelRequest
    minutes: float
    until_s: float
    """When they are over, on the monotonic clock."""
    preset: str | None
    """Name of the preset to write; None makes one of the model's name."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a run found."""

    model: Path
    outcome: Outcome
    spent_s: float
    preset: str | None
    """Name of the preset that was written; None where it could not be."""
    preset_path: Path | None
    problems: tuple[str, ...]
    """What went wrong beside the measuring, such as a file that could not be written."""
    was_stopped: bool
    """Whether the user ended it before its time."""


class Tuning:
    """One run.

    Raises:
        EngineError: there is no such model or preset, it cannot be read, or does not fit; or the
            name to write is none, or that of a preset that this command did not write.
    """

    def __init__(self, request: TuneRequest, settings: Settings) -> None:
        self._request = request
        self._configuration = open_here(request.model, settings, "tuning").configuration
        if self._configuration.backend == "torch":
            raise PresetError(NOT_TORCH)
        self._path = self._configuration.model_path
        folders = paths.model_folders(settings.models.folders)
        self._rules = choose_model(request.model, folders).rules
        self._name = request.preset or default_name(self._path, request.model)
        _check_name(self._name, self._path)
        self._model = read_model(self._path)
        self._problem = ""
        self._preset_path: Path | None = None

    @property
    def model_name(self) -> str:
        """The file's name."""
        return self._path.name

    def run(
        self, tell: Callable[[TuningProgress | TrialResult], None], waiting: Callable[[], None]
    ) -> Tuned:
        """What was found; it is kept as it is found, and Ctrl+C keeps what there is.

        Args:
            tell: Called with what is measured, and with each result.
            waiting: Called several times a second while something is measured.

        Raises:
            EngineError: nothing can be measured.
        """
        budget_s, until_s = 60 * self._request.minutes, self._request.until_s
        machine = TimingProcess(paths.worker_log_path(), waiting)
        try:
            tuner = Tuner(
                self._configuration,
                self._scope(),
                machine,
                budget_s=budget_s,
                until_s=until_s,
                tell=tell,
                keep=self._keep,
            )
            outcome = tuner.run()
        finally:
            machine.close()
        path = self._preset_path
        return Tuned(
            self._path, outcome, budget_s - (until_s - time.monotonic()),
            self._name if path else None, path, (self._problem,) if self._problem else (),
            tuner.was_stopped,
        )  # fmt: skip

    def _scope(self) -> Scope:
        n_cores, n_logical = usable_cores()
        architecture = self._model.architecture
        return Scope(
            n_cores=n_cores,
            n_begin=threads_beside(ProcessorLoad().free_now(), n_cores),
            n_logical=n_logical,
            has_flash_attention=architecture.has_flash_attention,
        )

    # --- what is left behind ---

    def _keep(self, outcome: Outcome) -> None:
        """Write the preset of what was found so far, and how fast the model is with it."""
        try:
            preset = self._preset(outcome)
            self._preset_path = save_preset(preset, paths.presets_dir(), replace_existing=True)
        except PresetError as error:
            self._problem = f"no preset was written: {error}"
        if not outcome.is_busy:
            self._keep_speed(outcome)
        else:  # the chat then does not suggest to tune it
            Speeds(paths.speeds_path()).meet(model_identity(self._path))

    def _preset(self, outcome: Outcome) -> Preset:
        """The rules at the start with what was taken."""
        date = datetime.now().astimezone().date().isoformat()
        now, draft = self._configuration, self._configuration.draft
        base = self._rules or Preset(name="new", sampling=SamplingRules(**asdict(now.sampling)))
        return made_preset(
            {
                **base.model_dump(exclude_defaults=True),
                **({} if draft is None else {"draft": {"model": str(draft.model_path)}}),
                "name": self._name,
                "model": str(self._path),
                "description": f"{MARK} on {date}: {_found(outcome)}",
                **outcome.changes,
                "speculation": asdict(now.speculation),
            }
        )

    def _keep_speed(self, outcome: Outcome) -> None:
        tps, deep = outcome.chosen_tps, outcome.chosen_tps.get("deep")
        Speeds(paths.speeds_path()).keep(
            model_identity(self._path),
            ModelSpeed(
                decode_tps=tps["near"],
                deep_tps=deep,
                n_deep=None if deep is None else outcome.sizes.n_deep,
                prompt_tps=tps["prompt"],
                preset=self._name if self._preset_path else self._request.model.preset or "",
                measured=datetime.now().astimezone().date().isoformat(),
            ),
        )


def _found(outcome: Outcome) -> str:
    """What was taken with its gain, in words."""
    taken = [
        f"{each.setting} {each.label} ({each.gain.median:.2f}x)"
        for each in outcome.compared
        if each.verdict == "taken" and each.gain is not None
    ]
    if taken:
        return ", ".join(taken)
    is_tried = any(each.verdict == "not faster" for each in outcome.compared)
    return f"the earlier settings{', nothing tried was faster' if is_tried else ''}"


def _check_name(name: str, model: Path) -> None:
    """Refuse a preset name that cannot be written, before anything is measured.

    Raises:
        PresetError: it is not a valid name, or is that of a preset of the user or of another model.
    """
    made_preset({"name": name})
    entry = named_preset(name, paths.presets_dir())
    if entry is None:
        return
    if not entry.description.startswith(MARK):
        raise PresetFileError(
            f"the preset {name!r} exists and was not written by kvchat tune: choose another "
            "name with --write"
        )
    tuned = find_preset(name, paths.presets_dir()).model
    if tuned != str(model):
        raise PresetFileError(
            f"the preset {name!r} has the settings tuned for {tuned}: name another with --write"
        )


def default_name(model: Path, request: ModelRequest) -> str:
    """Name of the preset to write: `tuned`, the model, and the preset that it starts from."""
    parts = [model.stem] if request.preset is None or request.model is not None else []
    if request.preset is not None:
        parts.append(Path(request.preset).stem if "/" in request.preset else request.preset)
    length = 50 // len(parts)
    return " ".join(["tuned", *(_clean(part)[:length] for part in parts)])


def _clean(part: str) -> str:
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in part)
    return kept.strip("._-") or "model"


def as_json(tuned: Tuned) -> dict[str, object]:
    """A result as what `json.dumps` takes; the names are a promise to scripts."""
    outcome = tuned.outcome
    return {
        "model": str(tuned.model),
        "is_complete": outcome.is_complete,
        "was_stopped": tuned.was_stopped,
        "elapsed_s": tuned.spent_s,
        "sizes": asdict(outcome.sizes),
        "n_others": outcome.n_others,
        "is_busy": outcome.is_busy,
        "compared": [asdict(each) for each in outcome.compared],
        "changes": outcome.changes,
        "start_tps": dict(outcome.start_tps),
        "chosen_tps": dict(outcome.chosen_tps),
        "preset": tuned.preset,
        "preset_path": None if tuned.preset_path is None else str(tuned.preset_path),
        "problems": list(tuned.problems),
    }
