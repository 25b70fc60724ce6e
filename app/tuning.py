"""Run the measurements of `kvchat tune` and save the preset."""

import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from app import paths
from app.config import Settings
from app.console import Progress, log_line
from app.opening import ModelRequest, choose_model, open_here
from engine.errors import PresetError, PresetFileError
from engine.experiment.timing import TimingProcess
from engine.experiment.tuner import Outcome, Scope, Trial, Tuner
from engine.generation.cpu_load import ProcessorLoad, threads_beside
from engine.memory.hardware import usable_cores
from engine.model.architecture import read_model
from engine.model.identity import model_identity
from engine.model.speeds import ModelSpeed, Speeds
from engine.presets.library import find_preset, named_preset, save_preset
from engine.presets.preset import Preset, SamplingRules, made_preset

MARK = "Measured by kvchat tune"
"""Start of the description of presets that a later run may replace."""
NOT_TORCH = (
    "kvchat tune measures settings of llama.cpp, not of the torch backend: remove --backend torch "
    "(or the preset that sets it); docs/torch.md lists fast settings for torch"
)


class Tuning:
    """One run, and what it found."""

    def __init__(self, request: ModelRequest, settings: Settings, name: str | None) -> None:
        self._configuration = open_here(request, settings, "tuning").configuration
        if self._configuration.backend == "torch":
            raise PresetError(NOT_TORCH)
        self.model = self._configuration.model_path
        self._request = request
        self._rules = choose_model(request, paths.model_folders(settings.models.folders)).rules
        self.name = name or default_name(self.model, request)
        _check_name(self.name, self.model)
        self._architecture = read_model(self.model).architecture
        self.outcome: Outcome | None = None
        """None before the settings at the start are measured."""
        self.elapsed_s = 0.0
        self.was_stopped = False
        """Whether the user stopped it."""
        self.preset_path: Path | None = None
        """The preset that was written."""
        self.problem = ""
        """Why no preset was written; empty if one was."""

    def run(self, budget_s: float, until_s: float, progress: Progress) -> None:
        """Measure, and save each result as it is found; Ctrl+C keeps the results so far."""
        doing = ""

        def show(text: str = "") -> None:
            nonlocal doing
            doing = text or doing
            progress.show(doing, 1 - max(until_s - time.monotonic(), 0) / budget_s)

        def report(trial: Trial) -> None:
            gain, label = trial.gain, f"{trial.setting}, {trial.label}: {trial.verdict}"
            ratio = f": {gain.median:.2f}x ({gain.low:.2f}x to {gain.high:.2f}x)" if gain else ""
            progress.clear()
            log_line(f"{label}{ratio}{f' ({trial.reason})' if trial.reason else ''}")

        process = TimingProcess(paths.worker_log_path(), show)
        try:
            tuner = Tuner(
                self._configuration, self._scope(), process.run,
                budget_s=budget_s, until_s=until_s, doing=show, report=report, save=self._save,
            )  # fmt: skip
            self.outcome = tuner.run()
        finally:
            process.close()
        self.was_stopped = tuner.was_stopped
        self.elapsed_s = budget_s - (until_s - time.monotonic())

    def as_values(self) -> dict[str, object]:
        """The result as JSON values."""
        assert self.outcome is not None
        return {
            **asdict(self.outcome),
            "changes": self.outcome.changes,
            "is_complete": self.outcome.is_complete,
            "model": self.model,
            "elapsed_s": self.elapsed_s,
            "preset": self.name if self.preset_path else None,
            "preset_path": self.preset_path,
            "problem": self.problem,
            "was_stopped": self.was_stopped,
        }

    def _scope(self) -> Scope:
        n_cores, n_logical = usable_cores()
        return Scope(
            n_cores=n_cores,
            n_begin=threads_beside(ProcessorLoad().free_now(), n_cores),
            n_logical=n_logical,
            has_flash_attention=self._architecture.has_flash_attention,
        )

    def _save(self, outcome: Outcome) -> None:
        """Write the preset, and the speed of the model with it unless the machine was busy."""
        try:
            preset = self._preset(outcome)
            self.preset_path = save_preset(preset, paths.presets_dir(), replace_existing=True)
        except PresetError as error:
            self.problem = f"no preset was written: {error}"
        speeds, identity = Speeds(paths.speeds_path()), model_identity(self.model)
        if outcome.is_busy:
            speeds.meet(identity)  # the chat then does not suggest to tune it
            return
        deep = outcome.chosen_tps.get("deep")
        speed = ModelSpeed(
            decode_tps=outcome.chosen_tps["near"],
            deep_tps=deep,
            n_deep=None if deep is None else outcome.sizes.n_deep,
            prompt_tps=outcome.chosen_tps["prompt"],
            preset=self.name if self.preset_path else self._request.preset or "",
            measured=_today(),
        )
        speeds.keep(identity, speed)

    def _preset(self, outcome: Outcome) -> Preset:
        now, draft = self._configuration, self._configuration.draft
        base = self._rules or Preset(name="new", sampling=SamplingRules(**asdict(now.sampling)))
        return made_preset(
            {
                **base.model_dump(exclude_defaults=True),
                **({} if draft is None else {"draft": {"model": str(draft.model_path)}}),
                "name": self.name,
                "model": str(self.model),
                "description": f"{MARK} on {_today()}: {_summary(outcome)}",
                **outcome.changes,
                "speculation": asdict(now.speculation),
            }
        )


def _today() -> str:
    return datetime.now().astimezone().date().isoformat()


def _summary(outcome: Outcome) -> str:
    chosen = [
        f"{each.setting} {each.label} ({each.gain.median:.2f}x)"
        for each in outcome.compared
        if each.verdict == "chosen" and each.gain is not None
    ]
    if chosen:
        return ", ".join(chosen)
    is_tried = any(each.verdict == "no gain" for each in outcome.compared)
    return f"the earlier settings{'; no other setting was faster' if is_tried else ''}"


def _check_name(name: str, model: Path) -> None:
    """Refuse a preset name that cannot be written, before anything is measured."""
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
            f"the preset {name!r} was tuned for {tuned}: choose another name with --write"
        )


def default_name(model: Path, request: ModelRequest) -> str:
    """Name of the preset to write: `tuned`, the model, and the preset that it starts from."""
    parts = [model.stem] if request.preset is None or request.model is not None else []
    if request.preset is not None:
        parts.append(Path(request.preset).stem if "/" in request.preset else request.preset)
    length = 50 // len(parts)
    return " ".join(["tuned", *(_clean(part)[:length] for part in parts)])


def _clean(part: str) -> str:
    cleaned = "".join(c if c.isalnum() or c in "._-" else "-" for c in part)
    return cleaned.strip("._-") or "model"
