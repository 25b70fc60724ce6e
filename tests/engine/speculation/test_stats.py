"""The counts of a reply: by source, by place, and none derived from another."""

from dataclasses import replace

import pytest

from engine.events import GenerationStats, PositionCounts, RoundFinished, SourceCounts
from engine.speculation.costs import PlainStep
from engine.speculation.stats import TimeSaved


def played(
    draft: str, *, n_verified: int | None = None, n_accepted: int = 0, elapsed_s: float = 0.0
) -> RoundFinished:
    """Give a round of a draft like "aaa", three tokens of the source a."""
    n_verified = len(draft) if n_verified is None else n_verified
    return RoundFinished(
        n_drafted=len(draft),
        n_verified=n_verified,
        n_examined=min(n_accepted + 1, n_verified),
        n_accepted=n_accepted,
        n_emitted=n_accepted + 1,
        source=draft[0] if draft else None,
        length=n_verified,
        next_length=0,
        reason="",
        draft_s=0.0,
        verify_s=elapsed_s,
        elapsed_s=elapsed_s,
        plain_step_s=None,
    )


def summed(*rounds: RoundFinished, step: PlainStep | None = None) -> GenerationStats:
    """Give the statistics of a reply of these rounds, timed against a plain step."""
    saved, step = TimeSaved(), step or PlainStep()
    for each in rounds:
        saved.add(
            step,
            n_verified=each.n_verified,
            n_emitted=each.n_emitted,
            draft_s=each.draft_s,
            elapsed_s=each.elapsed_s,
        )
    counted = GenerationStats(n_prompt=1).with_rounds(rounds)
    return replace(counted, saved_s=saved.seconds, saved_error_s=saved.error_s)


def plain_step(*seconds: float) -> PlainStep:
    step = PlainStep()
    for each in seconds or (0.1, 0.1, 0.1):
        step.add(each)
    return step


QUIET = plain_step()
NOISY = plain_step(0.1, 0.06, 0.15, 0.1, 0.05, 0.16, 0.1)


def test_sources_add_up_to_the_whole() -> None:
    stats = summed(
        played("aaaa", n_verified=3, n_accepted=1), played(""), played("bb", n_verified=0)
    )
    of_sources = stats.by_source.values()
    assert sum(each.n_drafted for each in of_sources) == stats.n_drafted == 6
    assert sum(each.n_verified for each in of_sources) == stats.n_verified == 3
    assert sum(each.n_examined for each in of_sources) == stats.n_examined == 2
    assert sum(each.n_accepted for each in of_sources) == stats.n_accepted == 1
    assert sum(each.n_examined for each in stats.by_position) == stats.n_examined
    assert sum(each.n_accepted for each in stats.by_position) == stats.n_accepted


def test_a_drafted_token_that_no_batch_held_is_not_verified() -> None:
    assert summed(played("aaa", n_verified=1, n_accepted=1)).by_source == {
        "a": SourceCounts(n_drafted=3, n_verified=1, n_examined=1, n_accepted=1, n_rounds=1),
    }
    assert summed(played("bb", n_verified=0)).by_source == {"b": SourceCounts(n_drafted=2)}


def test_acceptance_is_counted_by_place_up_to_the_first_miss() -> None:
    stats = summed(
        played("aaa", n_accepted=3), played("aaa", n_accepted=1), played("a", n_accepted=0)
    )
    assert stats.by_position == (
        PositionCounts(n_examined=3, n_accepted=2),
        PositionCounts(n_examined=2, n_accepted=1),
        PositionCounts(n_examined=1, n_accepted=1),
    )


def test_only_rounds_with_a_draft_are_compared_with_plain_steps() -> None:
    drafted = played("aaa", n_accepted=3, elapsed_s=0.2)
    slow = played("", elapsed_s=5.0)
    stats = summed(drafted, slow, drafted, step=QUIET)
    assert stats.saved_s == pytest.approx(2 * (4 * 0.1 - 0.2))
    assert stats.speedup == pytest.approx((5.4 + 0.4) / 5.4)
    assert stats.tokens_per_round == 3.0


def test_drafts_that_no_batch_held_are_charged() -> None:
    vain = replace(played("aa", n_verified=0, elapsed_s=0.13), draft_s=0.03)
    drafted = played("aaa", n_accepted=3, elapsed_s=0.2)
    stats = summed(drafted, vain, vain, drafted, step=QUIET)
    assert stats.saved_s == pytest.approx(2 * 0.2 - 2 * 0.03)


@pytest.mark.parametrize(
    "rounds",
    [
        (),
        (played("", elapsed_s=0.3),) * 9,
        (played("aa", n_verified=0, elapsed_s=0.3),) * 9,
    ],
    ids=["no round", "no draft", "no draft verified"],
)
def test_where_nothing_was_verified_nothing_was_saved_or_lost(
    rounds: tuple[RoundFinished, ...],
) -> None:
    stats = summed(*rounds, step=QUIET)
    assert (stats.saved_s, stats.saved_error_s, stats.speedup) == (None, None, None)


@pytest.mark.parametrize("n_accepted", [0, 1])
@pytest.mark.parametrize("elapsed_s", [0.01, 0.15, 4.0])
def test_one_draft_alone_is_no_gain_and_no_loss(n_accepted: int, elapsed_s: float) -> None:
    plain = [played("", elapsed_s=0.5)] * 48
    stats = summed(*plain, played("a", n_accepted=n_accepted, elapsed_s=elapsed_s), step=NOISY)
    assert stats.saved_s is not None
    assert stats.saved_error_s is not None
    assert abs(stats.saved_s) <= stats.saved_error_s


def test_a_speed_up_is_never_beyond_the_tokens_a_round() -> None:
    rounds = [*[played("", elapsed_s=0.01)] * 10, *[played("a", n_accepted=1, elapsed_s=0.01)] * 5]
    stats = summed(*rounds, step=QUIET)
    assert stats.tokens_per_round == pytest.approx(20 / 15)
    assert stats.speedup == pytest.approx(20 / 15)
    assert summed().tokens_per_round is None


FIRST = GenerationStats(
    n_prompt=100, n_reused=0, n_rounds=4, n_drafted=6, n_verified=6, n_examined=5, n_accepted=4,
    n_emitted=8, by_source={"lookup": SourceCounts(6, 6, 5, 4, 3)},
    by_position=(PositionCounts(3, 2), PositionCounts(2, 2)), prefill_s=1.0, first_token_s=1.1,
    decode_s=2.0, decode_tps=4.0, plain_step_s=0.3, saved_s=0.4,
    saved_error_s=0.03,
)  # fmt: skip
SECOND = GenerationStats(
    n_prompt=108, n_reused=108, n_rounds=2, n_emitted=2, by_source={"draft": SourceCounts(1, 1)},
    by_position=(PositionCounts(1, 0),), prefill_s=0.1, first_token_s=0.2, decode_s=1.0,
    decode_tps=2.0, plain_step_s=0.5, saved_s=-0.1,
    saved_error_s=0.04,
)  # fmt: skip


def test_counts_and_times_are_sums_and_speeds_those_of_the_sums() -> None:
    whole = FIRST + SECOND
    assert (whole.n_emitted, whole.n_rounds, whole.n_accepted) == (10, 6, 4)
    assert (whole.prefill_s, whole.decode_s) == (1.1, 3.0)
    assert whole.decode_tps == 10 / 3.0
    assert whole.tokens_per_round == 10 / 6
    assert whole.saved_s == pytest.approx(0.3)
    assert whole.saved_error_s == pytest.approx(0.05)
    assert whole.speedup == pytest.approx((1.2 * 2.0 + 0.9 * 1.0) / 3.0)


def test_the_wait_is_that_of_the_first_part_and_the_prompt_that_of_the_second() -> None:
    whole = FIRST + SECOND
    assert whole.first_token_s == 1.1
    assert (whole.n_prompt, whole.n_reused, whole.plain_step_s) == (108, 108, 0.5)
