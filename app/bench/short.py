"""A benchmark in a given time: who shall draft, from as many prompts as it suffices for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.bench.benchmark import (
    BenchOptions,
    make_plan,
    make_subject,
    make_units,
    new_results,
    run_units,
    still_to_do,
    without_failures,
)
from app.bench.policies import Policy, PolicyChoice
from app.bench.prompt_sets import Prompt, PromptChoice, read_prompts
from app.bench.results import (
    BenchError,
    PromptRecord,
    Results,
    read_results,
    write_results,
)
from app.bench.summary import SetSummary, summarise
from app.bench.verdict import Recommendation, noise_warning, recommend
from app.opening import loaded_engine
from engine.configuration import Configuration, ControllerName, PredictorName

N_PROMPTS = 12
"""Of each set at most; the time ends it before."""
LEAST_PROMPTS = 4
"""Prompts under which nothing is said about drafts."""
N_TOKENS = 64
"""Of a reply: as many as tell policies apart, and few enough for several prompts."""
FIXED = "lookup:fixed:3"


@dataclass(frozen=True, slots=True)
class DraftingProgress:
    """A prompt is done."""

    n_prompts: int
    spent_s: float


@dataclass(frozen=True, slots=True)
class Drafting:
    """What a short benchmark says about drafts."""

    advice: Recommendation
    summaries: tuple[SetSummary, ...]
    n_prompts: int
    is_complete: bool
    """Whether more time would measure nothing more."""


class ShortBenchmark:
    """Plain decoding, what drafts now, the automatic rule and a fixed look-up, prompt by prompt.

    Args:
        configuration: What is loaded.
        path: File of the results, from which a stopped run goes on; it may be missing.
        budget_s: Time for all prompts, those of earlier runs included; one that was begun is ended.
        note: Called with what the user should know.
    """

    def __init__(
        self,
        configuration: Configuration,
        path: Path,
        budget_s: float,
        note: Callable[[str], None],
    ) -> None:
        self._configuration = configuration
        self._path = path
        self._budget_s = budget_s
        self._note = note
        self.n_measured = 0
        """Prompts that this run measured."""
        self.result: Drafting | None = None

    def run(self) -> Iterator[DraftingProgress]:
        """Each prompt as it is done; `result` is there in the end.

        Raises:
            EngineError: the engine cannot be loaded, or dies on prompt after prompt.
        """
        options = BenchOptions(
            PromptChoice(n_prompts=N_PROMPTS),
            PolicyChoice(policies=policies_for(self._configuration)),
            n_pairs=1,
            n_tokens=N_TOKENS,
        )
        units = make_units(read_prompts(options.prompts), options.temperatures)
        units = tuple(sorted(units, key=lambda unit: unit.index))  # the sets by turns
        old = self._old()
        if old is not None and (old.elapsed_s >= self._budget_s or not still_to_do(units, old)):
            self._conclude(old, len(units))
            return
        with loaded_engine(self._configuration, self._note) as engine:
            policies = options.policies.of_model(engine.loaded.predictors)
            plan = make_plan(options, self._configuration, engine.loaded, policies)
            subject = make_subject(self._configuration, engine.loaded, plan)
            results = new_results(subject)
            if old is not None and old.subject == subject:
                results = without_failures(old)
            for unit in still_to_do(units, results):
                if results.elapsed_s >= self._budget_s:
                    break
                results = run_units(
                    engine, (unit,), plan, results, progress=_Quiet(), keep=self._keep
                )
                yield DraftingProgress(len(results.prompts), results.elapsed_s)
        self._conclude(results, len(units))

    def _old(self) -> Results | None:
        try:
            found = read_results(self._path)
        except BenchError:
            return None  # missing, damaged or of another version: it is measured anew
        return found if found.subject.policies == policies_for(self._configuration) else None

    def _keep(self, results: Results) -> None:
        self.n_measured += 1
        try:
            write_results(self._path, results)
        except BenchError as error:
            self._note(str(error))

    def _conclude(self, results: Results, n_units: int) -> None:
        summaries = summarise(results.prompts, results.subject.policies)
        n_prompts = sum(summary.n_prompts for summary in summaries)
        advice = recommend(summaries, results.subject.policies)
        if n_prompts < LEAST_PROMPTS or len(summaries) < 2:
            why = f"there was time for {n_prompts} prompts only"
            advice = Recommendation(None, why, is_open=True)
        elif (noise := noise_warning(summaries)) is not None:
            advice = Recommendation(None, noise, is_open=True)
        is_complete = len(results.prompts) >= n_units
        self.result = Drafting(advice, summaries, n_prompts, is_complete)


def policies_for(configuration: Configuration) -> tuple[str, ...]:
    """What drafts now, the automatic rule and a fixed look-up, each once."""
    now = configuration.speculation
    auto = PredictorName.COMBINED if configuration.draft else PredictorName.SUFFIX
    names = [Policy(auto, ControllerName.AUTO).name, FIXED]
    if now.predictor is not PredictorName.OFF:
        n_draft = now.n_draft if now.controller is ControllerName.FIXED else None
        asked = Policy(now.predictor, now.controller, n_draft, now.custom_predictor)
        names.insert(0, asked.name)
    return tuple(dict.fromkeys(names))


class _Quiet:
    """Shows nothing: whoever runs the benchmark tells of each prompt."""

    def run_done(self, prompt: Prompt, policy: str) -> None:
        pass

    def prompt_done(self, record: PromptRecord, n_done: int) -> None:
        pass
