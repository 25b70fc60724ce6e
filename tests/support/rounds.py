"""Rounds as the loop counts them."""

from engine.events import RoundFinished


def a_round(
    n_verified: int = 0,
    n_examined: int = 0,
    n_accepted: int = 0,
    n_emitted: int = 1,
    n_drafted: int = 0,
    *,
    draft_s: float = 0.0,
    verify_s: float | None = None,
) -> RoundFinished:
    """A round of these counts; without `verify_s` its time is not used for later ones."""
    return RoundFinished(
        n_drafted=n_drafted,
        n_verified=n_verified,
        n_examined=n_examined,
        n_accepted=n_accepted,
        n_emitted=n_emitted,
        source=None,
        length=n_verified,
        next_length=0,
        reason="",
        draft_s=draft_s,
        verify_s=verify_s or 0.0,
        elapsed_s=draft_s + (verify_s or 0.0),
        plain_step_s=None,
    )
