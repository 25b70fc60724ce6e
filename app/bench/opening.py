"""From what was asked to policies and prompts; nothing is measured here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.bench.errors import BenchError
from app.bench.measure import Plan
from app.bench.policies import Policy, make_policies, parse_policy, unique
from app.bench.prompt_sets import Prompt, choose, read_set
from app.bench.records import Subject
from engine.configuration import Configuration, ControllerName, PredictorName
from engine.events import Loaded

DEFAULT_SETS = ("grounded", "chat")
USUAL = (
    PredictorName.LOOKUP,
    PredictorName.SUFFIX,
    PredictorName.COMBINED,
    PredictorName.DRAFT,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command."""

    sets: tuple[str, ...]
    n_prompts: int | None
    """Prompts of a set; None is all."""
    only: tuple[str, ...]
    """Names of the prompts to run; empty draws `n_prompts`."""
    n_pairs: int
    n_tokens: int
    temperatures: tuple[float, ...]
    seed: int
    predictors: tuple[str, ...]
    """Empty is what the model can do of the usual ones."""
    controllers: tuple[ControllerName, ...]
    lengths: tuple[int, ...]
    policies: tuple[str, ...]
    """Exactly these instead of what the three above make."""


def read_prompts(asked: Asked) -> tuple[list[Prompt], ...]:
    """Give the chosen prompts of every set.

    Raises:
        BenchError: a set cannot be read, or two have one name.
    """
    sets = [read_set(name) for name in dict.fromkeys(asked.sets)]
    names = [prompts[0].set_name for prompts in sets]
    if len(set(names)) < len(names):
        raise BenchError(f"two of the sets have one name ({', '.join(names)}): rename a file")
    if asked.only:
        return _named(sets, asked.only)
    return tuple(choose(prompts, asked.n_prompts, seed=asked.seed) for prompts in sets)


def _named(sets: Sequence[list[Prompt]], only: Sequence[str]) -> tuple[list[Prompt], ...]:
    kept = tuple([prompt for prompt in prompts if prompt.name in only] for prompts in sets)
    missing = set(only) - {prompt.name for prompts in kept for prompt in prompts}
    if missing:
        raise BenchError(f"no set has a prompt {', '.join(sorted(missing))}: look at their names")
    return kept


def check_policies(asked: Asked) -> None:
    """Make sure that the policies can be read, before a model is loaded for them.

    Raises:
        BenchError: one cannot, or there is none.
    """
    _policies(asked, USUAL)


def chosen_policies(asked: Asked, available: Sequence[str]) -> tuple[Policy, ...]:
    """Give what is compared with plain decoding.

    Args:
        asked: The options.
        available: Predictors that the loaded model can use.

    Raises:
        BenchError: a policy is unknown, or its predictor not available here.
    """
    policies = _policies(asked, tuple(name for name in USUAL if name in available))
    asked_for = {each.predictor for each in policies} - {PredictorName.CUSTOM}
    missing = sorted(asked_for - set(available))
    if missing:
        raise BenchError(
            f"{', '.join(missing)} cannot be used with this model: it can use "
            f"{', '.join(name for name in available if name != PredictorName.OFF) or 'none'}"
            f"{'; --draft names a draft model' if PredictorName.DRAFT in missing else ''}"
        )
    return policies


def _policies(asked: Asked, usual: Sequence[PredictorName]) -> tuple[Policy, ...]:
    if asked.policies:
        return unique(map(parse_policy, asked.policies))
    return make_policies(asked.predictors or usual, asked.controllers, asked.lengths)


def make_plan(
    asked: Asked, configuration: Configuration, loaded: Loaded, policies: tuple[Policy, ...]
) -> Plan:
    """Give what is run for every prompt."""
    return Plan(
        policies=policies,
        n_pairs=asked.n_pairs,
        n_tokens=asked.n_tokens,
        seed=asked.seed,
        speculation=configuration.speculation,
        sampling=configuration.sampling,
        has_draft=PredictorName.DRAFT in loaded.predictors,
        has_template=loaded.has_chat_template,
    )


def make_subject(configuration: Configuration, loaded: Loaded, plan: Plan) -> Subject:
    """Give what the results are of."""
    draft = configuration.draft
    return Subject(
        model=configuration.model_path.name,
        model_bytes=_size(configuration.model_path),
        file_type=loaded.file_type,
        n_vocab=loaded.n_vocab,
        n_ctx=loaded.n_ctx,
        n_threads=configuration.n_threads,
        draft=None if draft is None else draft.model_path.name,
        draft_bytes=None if draft is None else _size(draft.model_path),
        policies=tuple(policy.name for policy in plan.policies),
        n_pairs=plan.n_pairs,
        n_tokens=plan.n_tokens,
        seed=plan.seed,
        verification=plan.speculation.verification,
        strict=plan.speculation.strict,
    )


def _size(path: Path) -> int:
    return path.stat().st_size
