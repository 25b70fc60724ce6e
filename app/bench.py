"""Run `kvchat bench`: load the model, save the results, the speed and the preset."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median

from app import __version__, paths
from app.config import Settings, SettingsError, set_in_toml, write_atomically
from app.console import EXIT_FAILED, EXIT_INTERRUPTED, Progress, log_line
from app.doctor import check_build
from app.opening import ModelRequest, loaded_engine, open_here
from app.render.bench import prompt_line
from engine.configuration import Configuration
from engine.errors import EngineError, PresetFileError
from engine.events import Loaded
from engine.experiment.arm import (
    PLAIN,
    Arm,
    ExperimentError,
    arms_for,
    check_available,
    distinct,
    parse_arm,
)
from engine.experiment.prompts import SETS, read_sets
from engine.experiment.records import (
    Facts,
    PromptRecord,
    Results,
    check_same_subject,
    read_results,
    this_machine,
    write_results,
)
from engine.experiment.runner import Runner, Unit
from engine.experiment.verdict import NOISY, noise_of, recommend, samples_of, token_s
from engine.files import SETTINGS_BYTES, exists, expanded, read_text
from engine.model.identity import model_identity
from engine.model.speeds import ModelSpeed, Speeds
from engine.parsing import parse_toml
from engine.presets.library import named_preset, new_path
from engine.presets.preset import made_preset, parse_preset
from engine.process.blocking_client import BlockingClient

NOT_COMPARED = frozenset({
    "server", "is_server_trusted", "model_path", "mmproj_path", "draft.model_path", "kv_trace",
    "sampling.temperature", "speculation.predictor", "speculation.controller",
    "speculation.n_draft",
})  # fmt: skip
"""Settings of no effect on a speed, and those that the prompts, arms or other facts set."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of `kvchat bench`."""

    sets: tuple[str, ...] = ()
    """Names of built-in prompt sets, or paths of JSONL files; empty is both built-in ones."""
    n_prompts: int = 6
    """Prompts of each set; 0 is all."""
    arms: tuple[str, ...] = ()
    """Arms to compare with plain decoding; empty is those of `arms_for`."""
    n_blocks: int = 1
    n_tokens: int = 128
    temperatures: tuple[float, ...] = ()
    """Sampling temperatures to measure; empty: only 0."""
    seed: int = 1

    @property
    def units(self) -> tuple[Unit, ...]:
        """Every prompt at every temperature."""
        prompts = read_sets(self.sets or SETS, self.n_prompts or None, seed=self.seed)
        temperatures = dict.fromkeys(self.temperatures or (0.0,))
        return tuple(Unit(prompt, each) for each in temperatures for prompt in prompts)


class Benchmark:
    """One measurement; `results` has what was measured, however it ended."""

    def __init__(
        self,
        options: BenchOptions,
        request: ModelRequest,
        settings: Settings,
        json_path: Path | None,
        progress: Progress,
    ) -> None:
        self._options = options
        self._units = options.units
        self._arms = distinct(map(parse_arm, options.arms))
        if any(arm.is_plain for arm in self._arms):
            raise ExperimentError("plain decoding is always measured: remove plain from --arm")
        self._json_path = json_path
        self._progress = progress
        is_there = json_path is not None and exists(json_path)
        self.results = read_results(json_path) if json_path is not None and is_there else None
        earlier = () if self.results is None else self.results.prompts
        self._earlier = {record.key for record in earlier if record.failure is None}
        self.configuration = open_here(request, settings, "a benchmark of drafts").configuration

    @property
    def measured(self) -> tuple[PromptRecord, ...]:
        """The prompts that this run measured."""
        records = () if self.results is None else self.results.prompts
        return tuple(record for record in records if record.key not in self._earlier)

    def run(self) -> int:
        """Measure what the results file lacks, and return the exit code.

        Ctrl+C and a dead engine keep every prompt that was done.
        """
        try:
            with loaded_engine(self.configuration, self._progress.note) as engine:
                self._measure(engine)
        except KeyboardInterrupt:
            self._progress.note("the benchmark was stopped; the results so far follow")
            return EXIT_INTERRUPTED
        except EngineError as error:
            if self.results is None or not self.results.prompts:
                raise
            self._progress.note(str(error))
            return EXIT_FAILED
        return 0

    def _measure(self, engine: BlockingClient) -> None:
        options, loaded = self._options, engine.last_loaded
        arms = self._arms or arms_for(loaded.predictors, self.configuration.speculation)
        check_available(arms, loaded.predictors)
        names = tuple(arm.name for arm in arms)
        started = datetime.now().astimezone().isoformat(timespec="seconds")
        _, build = check_build()
        version = "unknown" if build is None else f"{build.version} ({build.features})"
        machine = this_machine(llama_cpp=f"llama-cpp-python {version}", kvchat=__version__)
        new = Results(machine, self._subject(loaded), names, started)
        if self.results is None:
            self._save(new)
        assert self.results is not None
        check_same_subject(self.results, new)
        runner = Runner(
            engine, self.configuration, arms, self._progress.show, self._report,
            options.n_blocks, options.n_tokens, options.seed,
        )  # fmt: skip
        runner.run(self._units, self.results, self._save)

    def _report(self, record: PromptRecord) -> None:
        self._progress.clear()
        for text in (prompt_line(record), *record.notes):
            log_line(text)

    def _subject(self, loaded: Loaded) -> Facts:
        now, draft = self.configuration, self.configuration.draft
        return {
            **_settings(asdict(now)),
            "adapters": ", ".join(f"{each.path.name}:{each.scale}" for each in now.adapters),
            "model": now.model_path.name,
            "model_bytes": now.model_path.stat().st_size,
            "file_type": loaded.file_type,
            "draft": None if draft is None else draft.model_path.name,
            "draft_bytes": None if draft is None else draft.model_path.stat().st_size,
            "n_ctx": loaded.n_ctx or now.n_ctx,
            "n_blocks": self._options.n_blocks,
            "n_tokens": self._options.n_tokens,
            "seed": self._options.seed,
        }

    def _save(self, results: Results) -> None:
        self.results = results
        if self._json_path is not None:
            write_results(self._json_path, results)


def _settings(values: Mapping[str, object], prefix: str = "") -> Facts:
    """The settings that speeds depend on, by their dotted names."""
    found: Facts = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _settings(value, f"{prefix}{name}.")
        elif prefix + name not in NOT_COMPARED:
            found[prefix + name] = value if value is None or type(value) is int else str(value)
    return found


def store_speed(benchmark: Benchmark, request: ModelRequest) -> None:
    """Store the speed of plain decoding that a run measured, for plans and lists.

    Not if the machine was noisy, or the user changed settings that the speed depends on.
    """
    records, results = benchmark.measured, benchmark.results
    files = replace(request, model=None, draft=None, preset=None, mmproj=None, n_ctx=None)
    is_usual = files in (ModelRequest(), ModelRequest(backend="llama.cpp"))
    noise = None if results is None else noise_of(records, results.arms)
    speeds = [1 / token_s(sample.stats) for sample in samples_of(records, PLAIN.name)]
    if not is_usual or noise is None or noise >= NOISY:
        return
    today = datetime.now().astimezone().date().isoformat()
    speed = ModelSpeed(
        median(speeds), None, None, None, request.preset or "", today,
        by="bench", n_replies=len(speeds),
    )  # fmt: skip
    Speeds(paths.speeds_path()).keep(model_identity(benchmark.configuration.model_path), speed)


def preset_file(name: str, user_dir: Path) -> Path:
    """The file that a preset's name or path means; it need not exist.

    Raises:
        PresetFileError: the name is not valid, or that of a built-in preset.
    """
    path = expanded(name)
    if path.suffix == ".toml":
        return path
    entry = named_preset(name, user_dir, or_file=True)
    if entry is None:
        return new_path(made_preset({"name": name}).name, user_dir)
    if entry.is_builtin:
        raise PresetFileError(
            f"the preset {entry.name!r} is built in and cannot be changed: use another name"
        )
    return entry.path


def write_recommendation(
    path: Path, results: Results, configuration: Configuration, preset: str
) -> str:
    """Set what the results recommend in a preset; return why nothing was, empty if it was.

    Raises:
        PresetFileError: the file is not a valid preset, or cannot be written.
    """
    advice = recommend(results.prompts, results.arms)
    if advice.is_open:
        return advice.reason
    arm = PLAIN if advice.arm is None else parse_arm(advice.arm)
    write_arm(path, arm, configuration, path.stem if Path(preset).suffix == ".toml" else preset)
    return ""


def write_arm(path: Path, arm: Arm, configuration: Configuration, name: str) -> None:
    """Set an arm in `[speculation]` of a preset; comments, order and other keys stay.

    A preset that does not exist is made with this name, for the model of the configuration. A draft
    model that the arm uses is written to `[draft]`, unless the preset has one.

    Raises:
        PresetFileError: the file is not a valid preset, or cannot be written.
    """
    values = {
        key: value if isinstance(value, int) else str(value) for key, value in arm.changes.items()
    }
    draft = configuration.draft if arm.uses_draft_model else None
    try:
        text = _preset_text(path, name, configuration.model_path)
        if draft is not None and "draft" not in parse_toml(text):
            text = set_in_toml(text, "draft", {"model": str(draft.model_path)})
        text = set_in_toml(text, "speculation", values)
        parse_preset(text, path.name)
        write_atomically(path, text)
    except (OSError, ValueError) as error:
        raise PresetFileError(f"the preset {path} cannot be updated: {error}") from error
    except SettingsError as error:
        raise PresetFileError(str(error)) from error


def _preset_text(path: Path, name: str, model: Path) -> str:
    import tomlkit  # slow to import, for presets that are written

    if not path.exists():
        return tomlkit.dumps({"name": name, "model": str(model)})
    text = read_text(path, limit=SETTINGS_BYTES)
    parse_preset(text, path.name)
    return text
