"""How drafts are judged, in words short enough for a panel's title."""

from engine.configuration import SpeculationSettings


def judging(settings: SpeculationSettings) -> tuple[str, ...]:
    """Give what differs from the usual: the verification, `strict`, and the missing bonus token.

    `strict` is left out where it has no meaning, under `rejection` and `block`.
    """
    compares = settings.verification in ("coupled", "match")
    told = {
        settings.verification: settings.verification != "coupled",
        "strict": settings.strict and compares,
        "no bonus": not settings.bonus_token,
    }
    return tuple(word for word, is_told in told.items() if is_told)
