"""`kvchat tune` from a model to a preset: what is measured, what is told, and what is kept."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from app import paths
from app.bench.short import Drafting, DraftingProgress, ShortBenchmark
from app.config import Settings
from app.opening import ModelRequest, OpenedModel, choose_model, open_here
from engine.configuration import (
    Configuration,
    PredictorName,
    SpeculationSettings,
)
from engine.errors import EngineError, PresetError, PresetFileError
from engine.memory.estimate import estimate
from engine.memory.hardware import usable_cores, usable_devices
from engine.memory.units import MIB
from engine.model.architecture import read_model
from engine.model.identity import model_identity
from engine.model.speeds import ModelSpeed, Speeds
from engine.presets.library import made_preset, named_preset, save_preset
from engine.presets.preset import Preset, SamplingRules
from engine.process.watchdog import BuildMemory
from engine.speculation.cost_profile import profile_key
from engine.tuning.outcome import (
    Outcome,
    RecordError,
    TrialProgress,
    TrialResult,
    TuningRecord,
    read_record,
    write_record,
)
from engine.tuning.timer import Engines
from engine.tuning.trials import Scope
from engine.tuning.tuner import Tuner

if TYPE_CHECKING:
    from engine.process.client import WorkerClient

PREDICTOR_SHARE = 0.25
"""Of the time, for who drafts and by which rule."""
MARK = "Measured by kvchat tune"
"""How the description of a preset begins that a later run may replace."""
MARGIN_BYTES = 512 * MIB


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What to tune, for how long, and what to write."""

    model: ModelRequest
    minutes: float
    again: bool
    """Whether what was measured before is forgotten."""
    preset: str | None
    """Name of the preset to write; None makes one of the model's name."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Everything that a run says."""

    model: Path
    outcome: Outcome
    drafting: Drafting | None
    """None where drafts were not measured."""
    preset: str | None
    """Name of the preset that was written; None where it could not be."""
    preset_path: Path | None
    problems: tuple[str, ...]
    """What went wrong beside the measuring, such as a file that could not be written."""
    was_done: bool
    """Whether nothing had to be measured."""

    @property
    def is_complete(self) -> bool:
        """Whether a second run has nothing to do."""
        return self.outcome.is_complete and self.drafting is not None and self.drafting.is_complete


TuneStep = TrialProgress | TrialResult | DraftingProgress


class Tuning:
    """One run; `run` tells how far it is, and `result` what came of it.

    Raises:
        EngineError: there is no such model or preset, it cannot be read, or does not fit; or the
            name to write is none, or that of a preset that this command did not write.
    """

    def __init__(self, request: TuneRequest, settings: Settings) -> None:
        self._request = request
        self._configuration = _opened(request.model, settings).configuration
        self._path = self._configuration.model_path
        folders = paths.model_folders(settings.models.folders)
        self._rules = choose_model(request.model, folders).rules
        start = request.model.preset
        self._name = request.preset or default_name(Path(start) if start else self._path)
        _check_name(self._name)
        self._model = read_model(self._path)
        self._devices = usable_devices()
        self._record_path = _path_of(self._configuration, ".json")
        self._record = TuningRecord() if request.again else read_record(self._record_path)
        self._budget_s = 60 * request.minutes
        self._problems: dict[str, None] = {}
        self._n_measured = 0
        self.result: Tuned | None = None

    @property
    def model_name(self) -> str:
        """The file's name."""
        return self._path.name

    @property
    def spent_s(self) -> float:
        """Time that earlier runs took."""
        return self._record.spent_s

    def run(self) -> Iterator[TuneStep]:
        """What happens, as it happens.

        Raises:
            EngineError: nothing can be measured.
        """
        with Engines(_new_client, self._n_loaded()) as machine:
            tuner = Tuner(
                self._configuration,
                self._scope(),
                machine,
                self._record,
                budget_s=(1 - PREDICTOR_SHARE) * self._budget_s,
                keep=self._keep,
            )
            yield from tuner.run()
            outcome = tuner.outcome()
        drafting = None
        try:
            drafts_path = _path_of(outcome.chosen, ".drafts.json")
            if self._request.again:
                drafts_path.unlink(missing_ok=True)
            benchmark = ShortBenchmark(
                outcome.chosen, drafts_path, PREDICTOR_SHARE * self._budget_s, self._note
            )
            yield from benchmark.run()
            drafting = benchmark.result
            self._n_measured += benchmark.n_measured
        except EngineError as error:
            self._note(f"drafts were not measured: {error}")
        name, path = self._write_preset(outcome, drafting)
        self._keep_speed(outcome, name)
        self.result = Tuned(
            self._path, outcome, drafting, name, path, tuple(self._problems),
            was_done=not self._n_measured,
        )  # fmt: skip

    def _keep(self, record: TuningRecord) -> None:
        """Write what was measured, or remember why not: measuring goes on without the file."""
        self._n_measured += 1
        try:
            write_record(self._record_path, record)
        except RecordError as error:
            self._note(str(error))

    def _scope(self) -> Scope:
        n_cores, n_logical = usable_cores()
        return Scope(
            n_cores=n_cores,
            n_logical=n_logical,
            n_layers=self._model.architecture.n_layers + 1,
            has_gpu=any(device.kind == "gpu" for device in self._devices),
            has_flash_attention=self._model.architecture.has_flash_attention,
        )

    def _n_loaded(self) -> int:
        """Two engines where both fit beside each other, else one."""
        found = estimate(self._model, self._configuration, self._devices)
        used = [device for device in found.devices if device.total_bytes]
        fits = all(device.left_bytes - device.total_bytes >= MARGIN_BYTES for device in used)
        return 2 if fits else 1

    def _note(self, text: str) -> None:
        self._problems[text] = None

    # --- what is left behind ---

    def _write_preset(
        self, outcome: Outcome, drafting: Drafting | None
    ) -> tuple[str | None, Path | None]:
        """Name and path of the preset, of the settings of now where nothing beats them."""
        now = self._configuration.speculation
        speculation = now
        if drafting is not None and not drafting.advice.is_open:
            policy = drafting.advice.policy
            off = replace(now, predictor=PredictorName.OFF)
            speculation = off if policy is None else policy.settings(now)
        try:
            preset = self._preset(outcome, speculation)
            return preset.name, save_preset(preset, paths.presets_dir(), replace_existing=True)
        except PresetError as error:
            self._note(f"no preset was written: {error}")
            return None, None

    def _preset(self, outcome: Outcome, speculation: SpeculationSettings) -> Preset:
        """The rules of now with what was found."""
        gain = outcome.total
        faster = (
            "nothing beats these" if gain is None else f"a turn {gain.median:.2f} times as fast"
        )
        date = datetime.now().astimezone().date().isoformat()
        now, draft = self._configuration, self._configuration.draft
        base = self._rules or Preset(name="new", sampling=SamplingRules(**asdict(now.sampling)))
        changes = dict(outcome.changes)
        if changes.get("n_gpu_layers") == -1:
            changes["n_gpu_layers"] = "all"
        return made_preset(
            {
                **base.model_dump(exclude_defaults=True),
                **({} if draft is None else {"draft": {"model": str(draft.model_path)}}),
                "name": self._name,
                "model": str(self._path),
                "description": f"{MARK} on {date}: {faster}",
                "speculation": asdict(speculation),
                **changes,
            }
        )

    def _keep_speed(self, outcome: Outcome, preset: str | None) -> None:
        tps = outcome.chosen_tps if preset else outcome.start_tps
        Speeds(paths.speeds_path()).keep(
            model_identity(self._path),
            ModelSpeed(
                decode_tps=tps["near"],
                deep_tps=tps["deep"],
                n_deep=outcome.sizes.n_deep,
                prompt_tps=tps["prompt"],
                preset=preset or self._request.model.preset or "",
                measured=datetime.now().astimezone().date().isoformat(),
            ),
        )


def _check_name(name: str) -> None:
    """Make sure that a preset can be written by that name, before anything is measured.

    Raises:
        PresetError: it is no name, or that of a preset that this command did not write.
    """
    made_preset({"name": name})
    entry = named_preset(name, paths.presets_dir())
    if entry is not None and not entry.description.startswith(MARK):
        raise PresetFileError(
            f"there is a preset {name!r} already that was not made by this command: name another "
            "with --write"
        )


def _path_of(configuration: Configuration, ending: str) -> Path:
    """Where measurements of a configuration lie; how long its context is changes none of them.

    Raises:
        ModelFileError: a model cannot be read.
    """
    return paths.tuning_dir() / f"{profile_key(replace(configuration, n_ctx=0))}{ending}"


def default_name(path: Path) -> str:
    """The name of the preset of a model or another preset: `tuned` and what its file is called."""
    stem = path.stem if path.suffix in (".gguf", ".toml") else path.name
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in stem)
    return f"tuned {kept.strip('._-')[:50] or 'model'}"


def _opened(request: ModelRequest, settings: Settings) -> OpenedModel:
    """The model as the chat opens it; where repacked weights crash here, without them."""
    opened = open_here(request, settings, "tuning")
    if BuildMemory(paths.build_memory_path()).extra_buffers_crash:
        without = replace(opened.configuration, use_extra_buffers=False)
        return replace(opened, configuration=without)
    return opened


def _new_client() -> "WorkerClient":
    """An engine that keeps nothing of what it learns under settings that are only tried."""
    from engine.process.client import WorkerClient

    return WorkerClient(log_path=paths.worker_log_path(), memory_path=paths.build_memory_path())


def as_json(tuned: Tuned) -> dict[str, object]:
    """A result as what `json.dumps` takes; the names are a promise to scripts."""
    outcome = tuned.outcome
    drafting = tuned.drafting
    return {
        "model": str(tuned.model),
        "is_complete": tuned.is_complete,
        "was_done": tuned.was_done,
        "spent_s": outcome.spent_s,
        "sizes": asdict(outcome.sizes),
        "noise": asdict(outcome.noise),
        "compared": [asdict(each) for each in outcome.compared],
        "changes": outcome.changes,
        "total": None if outcome.total is None else asdict(outcome.total),
        "start_tps": dict(outcome.start_tps),
        "chosen_tps": dict(outcome.chosen_tps),
        "drafts": None
        if drafting is None
        else {
            "recommended": drafting.advice.name,
            "reason": drafting.advice.reason,
            "n_prompts": drafting.n_prompts,
        },
        "preset": tuned.preset,
        "preset_path": None if tuned.preset_path is None else str(tuned.preset_path),
        "problems": list(tuned.problems),
    }
