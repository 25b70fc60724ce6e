"""Predictors that other packages bring, by entry point."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from engine.backends.base import Vocabulary
from engine.configuration import SpeculationSettings
from engine.errors import PredictorError
from engine.speculation.predictors.base import Predictor
from engine.speculation.predictors.guard import translated

GROUP = "kvchat.predictors"
"""Entry points of this group give factories of predictors."""

PARTS = ("reset", "commit", "propose", "close")


@dataclass(frozen=True, slots=True)
class PredictorSetup:
    """What a factory gets to make its predictor from."""

    vocabulary: Vocabulary
    """The target's: text to tokens and back."""
    settings: SpeculationSettings
    """What the user set; a predictor may read any of it."""
    n_ctx: int
    """Tokens that the target's context holds."""

    @property
    def n_vocab(self) -> int:
        """Number of tokens; a proposed one is less than it."""
        return self.vocabulary.n_tokens


def plugin_names() -> tuple[str, ...]:
    """The names of the predictors that are installed, sorted; none of them is imported."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def make_plugin(name: str, setup: PredictorSetup) -> Predictor:
    """Import the predictor of that name and make it.

    Raises:
        PredictorError: none or several are installed under the name, it cannot be imported or made,
            or what it gives is no predictor.
    """
    point = _entry_point(name)
    with translated(f"its import from {point.value}"):
        factory: object = point.load()
    if not callable(factory):
        raise PredictorError(
            f"{point.value} is no factory: name a class or a function that makes a predictor"
        )
    with translated(f"its factory {point.value}"):
        made: object = factory(setup)
        lacking = [part for part in PARTS if not callable(getattr(made, part, None))]
    if lacking:
        raise PredictorError(
            f"{point.value} gave a {type(made).__name__} without {', '.join(lacking)}: "
            f"a predictor has {', '.join(PARTS)}"
        )
    return cast(Predictor, made)


def _entry_point(name: str) -> EntryPoint:
    found = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not found:
        known = ", ".join(plugin_names()) or "none"
        raise PredictorError(
            f"no predictor {name!r} is installed (installed: {known}): install the package that "
            f"brings it as an entry point of the group {GROUP}"
        )
    if len(found) > 1:
        raise PredictorError(
            f"several packages bring a predictor {name!r} ({', '.join(sorted(found))}): "
            "uninstall all but one"
        )
    return next(iter(found.values()))
