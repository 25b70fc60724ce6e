"""Whether a draft says what the target would have said."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from engine.backends.base import Logits
from engine.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one verification.

    `next_token` stands behind the accepted ones: the correction of the first refuted token, or
    the bonus behind a draft that was accepted whole.
    """

    n_accepted: int
    n_examined: int
    next_token: int


def verify_draft(
    draft: Tokens[int], logits: Logits, sampler: Sampler, line: Tokens[int]
) -> Verdict:
    """Compare a draft with the target's own choice, row by row, up to the first miss.

    `logits` is `[len(draft) + 1, n_vocab]`, `line` every committed token. Each row is drawn by the
    target's sampler with the drafted tokens before it in the history, so penalties count them. At
    temperature 0 this is argmax match; above it the noise depends on the position alone, so the
    drawn tokens are those of a run without a draft (coupled sampling, see `sampling.noise`). In
    both, the text cannot depend on the draft.
    """
    history = [*_recent(line, sampler), *draft]
    n_before = len(history) - len(draft)
    for index, drafted in enumerate(draft):
        own = sampler.sample(logits[index], history[: n_before + index], len(line) + index)
        if own != drafted:
            return Verdict(n_accepted=index, n_examined=index + 1, next_token=own)
    position = len(line) + len(draft)
    bonus = sampler.sample(logits[len(draft)], history, position)
    return Verdict(n_accepted=len(draft), n_examined=len(draft), next_token=bonus)


def _recent(line: Tokens[int], sampler: Sampler) -> Tokens[int]:
    """Give as much of the line as the sampler looks at."""
    window = sampler.history_window
    return line[-window:] if window else ()
