"""A predictor that a session must do without."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Barred:
    """A predictor that must not be used, and why."""

    title: str
    """As `SpeculationSettings.predictor_title` spells it."""
    reason: str
    """A sentence for the user."""


@dataclass(frozen=True, slots=True)
class Busy:
    """A predictor that is at work, for how long so far."""

    title: str
    elapsed_s: float
