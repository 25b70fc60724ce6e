"""The settings that a benchmark compares with plain decoding, and their names."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from app.bench.results import BenchError
from engine.configuration import MAX_DRAFT, ControllerName, PredictorName, SpeculationSettings
from engine.errors import PresetError
from engine.speculation.predictor_pool import with_predictor

USUAL = tuple(
    name for name in PredictorName if name not in (PredictorName.OFF, PredictorName.CUSTOM)
)


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
    def uses_draft_model(self) -> bool:
        """Whether a loaded draft model drafts."""
        return self.predictor in (PredictorName.DRAFT, PredictorName.COMBINED)

    @property
    def is_fixed(self) -> bool:
        """Whether the length is one number, whatever the text and the machine."""
        return self.controller is ControllerName.FIXED

    @property
    def is_auto(self) -> bool:
        """Whether kvchat's automatic rule decides."""
        return self.controller is ControllerName.AUTO

    def settings(self, base: SpeculationSettings) -> SpeculationSettings:
        """The settings of a session; what a policy does not name is taken from `base`."""
        return replace(
            base,
            predictor=self.predictor,
            controller=self.controller,
            n_draft=base.n_draft if self.n_draft is None else self.n_draft,
        )


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """Which policies to compare with plain decoding."""

    predictors: tuple[str, ...] = ()
    """Empty is those of `USUAL` that the model can use."""
    controllers: tuple[ControllerName, ...] = (ControllerName.AUTO, ControllerName.FIXED)
    lengths: tuple[int, ...] = (2, 4, 8)
    policies: tuple[str, ...] = ()
    """Exactly these instead of what the three above make."""

    def check(self) -> None:
        """Make sure that the policies can be read, before a model is loaded for them.

        Raises:
            BenchError: one cannot, or there is none.
        """
        self._policies(USUAL)

    def of_model(self, available: Sequence[str]) -> tuple[Policy, ...]:
        """The policies for a loaded model.

        Args:
            available: Predictors that the model can use.

        Raises:
            BenchError: a policy is unknown, or its predictor not available here.
        """
        policies = self._policies([name for name in USUAL if name in available])
        wanted = {each.predictor for each in policies}
        missing = sorted(wanted - set(available))
        if missing:
            raise BenchError(
                f"{', '.join(missing)} cannot be used with this model: it can use "
                f"{', '.join(name for name in available if name != PredictorName.OFF) or 'none'}"
                f"{'; --draft specifies a draft model' if PredictorName.DRAFT in missing else ''}"
            )
        return policies

    def _policies(self, usual: Sequence[PredictorName]) -> tuple[Policy, ...]:
        if self.policies:
            return unique(map(parse_policy, self.policies))
        return make_policies(self.predictors or usual, self.controllers, self.lengths)


def parse_policy(text: str) -> Policy:
    """Read `PREDICTOR:CONTROLLER` or `PREDICTOR:fixed:LENGTH`.

    Raises:
        BenchError: a part is unknown, or the length is missing, too many or out of range.
    """
    predictor, _, rule = text.partition(":")
    controller, *lengths = rule.split(":")
    if controller not in list(ControllerName):
        raise BenchError(
            f"{text!r} is not a policy: its controller {controller!r} is not one of "
            f"{', '.join(ControllerName)}: write PREDICTOR:auto or, with a "
            "length, PREDICTOR:fixed:4"
        )
    policy = drafting(predictor, ControllerName(controller))
    if len(lengths) != policy.is_fixed:
        raise BenchError(
            f"{text!r}: the fixed controller needs a length, auto has none: write "
            f"{predictor}:fixed:4 or {predictor}:auto"
        )
    return replace(policy, n_draft=_length(lengths[0])) if lengths else policy


def drafting(predictor: str, controller: ControllerName) -> Policy:
    """A policy of a predictor, without a length.

    Raises:
        BenchError: there is no such predictor, or it is `off`.
    """
    try:
        settings = with_predictor(SpeculationSettings(), predictor)
    except PresetError as error:
        raise BenchError(str(error)) from error
    if settings.predictor is PredictorName.OFF:
        raise BenchError("plain decoding is always measured: leave `off` out")
    return Policy(settings.predictor, controller)


def make_policies(
    predictors: Sequence[str], controllers: Sequence[ControllerName], lengths: Sequence[int]
) -> tuple[Policy, ...]:
    """Every predictor under every controller, with every length where it is fixed.

    Under `auto` the sources compete by themselves, so that `combined` covers all where it is
    among the predictors.

    Raises:
        BenchError: nothing is left to compare, a predictor is unknown, or a length out of range.
    """
    fixed = [_length(str(length)) for length in dict.fromkeys(lengths)]
    policies: list[Policy] = []
    for controller in dict.fromkeys(controllers):
        for policy in _under(controller, predictors):
            if controller is ControllerName.FIXED:
                policies += [replace(policy, n_draft=length) for length in fixed]
            else:
                policies.append(policy)
    return unique(policies)


def unique(policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """Each policy once, in order.

    Raises:
        BenchError: there is none.
    """
    kept = tuple(dict.fromkeys(policies))
    if not kept:
        raise BenchError(
            "there is nothing to compare with plain decoding: specify a predictor and a "
            "controller, "
            "and a length for the fixed one"
        )
    return kept


def _under(controller: ControllerName, predictors: Sequence[str]) -> list[Policy]:
    found = [drafting(predictor, controller) for predictor in dict.fromkeys(predictors)]
    names = {policy.predictor for policy in found}
    if controller is ControllerName.AUTO and PredictorName.COMBINED in names:
        return [policy for policy in found if policy.predictor is PredictorName.COMBINED]
    return found


def _length(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_DRAFT:
        raise BenchError(f"a draft of {text!r} tokens is not possible: take 1 to {MAX_DRAFT}")
    return int(text)
