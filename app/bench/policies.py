"""The settings that a benchmark compares with plain decoding, and their names."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from app.bench.errors import BenchError
from engine.configuration import MAX_DRAFT, ControllerName, PredictorName, SpeculationSettings

PLAIN = "plain"
"""Name of the runs that draft nothing."""
DEFAULT_LENGTHS = (2, 4, 8)
DEFAULT_CONTROLLERS = (ControllerName.AUTO, ControllerName.FIXED)


@dataclass(frozen=True, slots=True)
class Policy:
    """A predictor under a controller; `n_draft` is the fixed length, None under other rules."""

    predictor: PredictorName
    controller: ControllerName
    n_draft: int | None = None

    @property
    def name(self) -> str:
        """Name in tables and files, which `parse_policy` reads again: `lookup:fixed:4`."""
        parts = [self.predictor.value, self.controller.value]
        return ":".join(parts if self.n_draft is None else [*parts, str(self.n_draft)])

    @property
    def is_fixed(self) -> bool:
        """Whether the length is one number, whatever the text and the machine."""
        return self.controller is ControllerName.FIXED

    @property
    def is_auto(self) -> bool:
        """Whether kvchat's automatic rule decides."""
        return self.controller is ControllerName.AUTO

    def settings(self, base: SpeculationSettings) -> SpeculationSettings:
        """Give the settings of a session; what a policy does not name is taken from `base`."""
        chosen = replace(base, predictor=self.predictor, controller=self.controller)
        return chosen if self.n_draft is None else replace(chosen, n_draft=self.n_draft)


def parse_policy(text: str) -> Policy:
    """Read `PREDICTOR:CONTROLLER` or `PREDICTOR:fixed:LENGTH`.

    Raises:
        BenchError: a part is unknown, or the length is missing, too many or out of range.
    """
    predictor, _, rest = text.partition(":")
    controller, _, length = rest.partition(":")
    try:
        policy = Policy(PredictorName(predictor), ControllerName(controller))
    except ValueError as error:
        raise BenchError(
            f"{text!r} is no policy ({error}): write PREDICTOR:CONTROLLER, as combined:auto, or "
            "PREDICTOR:fixed:LENGTH, as lookup:fixed:4"
        ) from error
    if policy.predictor is PredictorName.OFF:
        raise BenchError("plain decoding is always measured: leave the predictor off out")
    if policy.is_fixed != bool(length):
        raise BenchError(
            f"{text!r}: the fixed rule needs a length and the others take none: write "
            f"{predictor}:fixed:4 or {predictor}:auto"
        )
    return replace(policy, n_draft=_length(length)) if length else policy


def make_policies(
    predictors: Sequence[PredictorName],
    controllers: Sequence[ControllerName],
    lengths: Sequence[int],
) -> tuple[Policy, ...]:
    """Give every predictor under every controller, with every length where it is fixed.

    Under `auto` the sources compete by themselves, so that `combined` stands for all where it is
    among the predictors.

    Raises:
        BenchError: nothing is left to compare, or a length is out of range.
    """
    fixed = [_length(str(length)) for length in dict.fromkeys(lengths)]
    policies: list[Policy] = []
    for controller in dict.fromkeys(controllers):
        for predictor in _under(controller, predictors):
            if controller is ControllerName.FIXED:
                policies += [Policy(predictor, controller, length) for length in fixed]
            else:
                policies.append(Policy(predictor, controller))
    return unique(policies)


def unique(policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """Give each policy once, in order.

    Raises:
        BenchError: there is none.
    """
    kept = tuple(dict.fromkeys(policies))
    if not kept:
        raise BenchError(
            "there is nothing to compare with plain decoding: name a predictor and a controller, "
            "and a length for the fixed one"
        )
    return kept


def _under(controller: ControllerName, predictors: Sequence[PredictorName]) -> list[PredictorName]:
    drafting: list[PredictorName] = [
        name for name in dict.fromkeys(predictors) if name is not PredictorName.OFF
    ]
    if controller is ControllerName.AUTO and PredictorName.COMBINED in drafting:
        return [PredictorName.COMBINED]
    return drafting


def _length(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_DRAFT:
        raise BenchError(f"a draft of {text!r} tokens is not possible: take 1 to {MAX_DRAFT}")
    return int(text)
