"""The counts of a reply: by source, by place, and none derived from another."""

import pytest

from engine.events import GenerationStats, PositionCounts, RoundFinished, SourceCounts
from engine.speculation.stats import ReplyStats, sources_of


def played(
    sources: str, *, n_verified: int | None = None, n_accepted: int = 0, elapsed_s: float = 0.0
) -> RoundFinished:
    """Give a round whose drafted tokens are from the sources of these letters."""
    n_verified = len(sources) if n_verified is None else n_verified
    return RoundFinished(
        n_drafted=len(sources),
        n_verified=n_verified,
        n_examined=min(n_accepted + 1, n_verified),
        n_accepted=n_accepted,
        n_emitted=n_accepted + 1,
        source=sources[0] if n_verified else None,
        length=n_verified,
        next_length=0,
        reason="",
        draft_s=0.0,
        verify_s=elapsed_s,
        elapsed_s=elapsed_s,
        plain_step_s=None,
        sources=tuple(sources),
    )


def summed(*rounds: RoundFinished, plain_step_s: float | None = None) -> GenerationStats:
    stats = ReplyStats(n_prompt=1, n_reused=0, prefill_s=0.0)
    for each in rounds:
        stats.add(each)
    return stats.summary(plain_step_s)


def test_each_token_counts_under_its_own_source() -> None:
    stats = summed(played("aabb", n_accepted=3), played("b", n_accepted=0))
    assert stats.by_source == {
        "a": SourceCounts(n_drafted=2, n_verified=2, n_examined=2, n_accepted=2, n_rounds=1),
        "b": SourceCounts(n_drafted=3, n_verified=3, n_examined=3, n_accepted=1, n_rounds=2),
    }


def test_sources_add_up_to_the_whole() -> None:
    stats = summed(
        played("abab", n_verified=3, n_accepted=1), played(""), played("bb", n_verified=0)
    )
    of_sources = stats.by_source.values()
    assert sum(each.n_drafted for each in of_sources) == stats.n_drafted == 6
    assert sum(each.n_verified for each in of_sources) == stats.n_verified == 3
    assert sum(each.n_examined for each in of_sources) == stats.n_examined == 2
    assert sum(each.n_accepted for each in of_sources) == stats.n_accepted == 1
    assert sum(each.n_examined for each in stats.by_position) == stats.n_examined
    assert sum(each.n_accepted for each in stats.by_position) == stats.n_accepted


def test_a_drafted_token_that_no_batch_held_is_not_verified() -> None:
    assert sources_of(played("aab", n_verified=1, n_accepted=1)) == {
        "a": SourceCounts(n_drafted=2, n_verified=1, n_examined=1, n_accepted=1, n_rounds=1),
        "b": SourceCounts(n_drafted=1),
    }


def test_acceptance_is_counted_by_place_up_to_the_first_miss() -> None:
    stats = summed(
        played("aaa", n_accepted=3), played("aaa", n_accepted=1), played("a", n_accepted=0)
    )
    assert stats.by_position == (
        PositionCounts(n_examined=3, n_accepted=2),
        PositionCounts(n_examined=2, n_accepted=1),
        PositionCounts(n_examined=1, n_accepted=1),
    )


def test_speed_up_is_against_the_plain_step() -> None:
    rounds = (played("aaa", n_accepted=3, elapsed_s=0.2), played("", elapsed_s=0.1))
    stats = summed(*rounds, plain_step_s=0.1)
    assert stats.speedup == pytest.approx(5 * 0.1 / 0.3)
    assert stats.tokens_per_round == 2.5
    assert summed(*rounds).speedup is None


def test_a_reply_without_drafts_has_no_speed_up() -> None:
    assert summed(played("", elapsed_s=0.1), plain_step_s=0.1).speedup is None
    assert summed().tokens_per_round is None


def test_a_round_without_sources_of_its_tokens_counts_under_the_one_it_names() -> None:
    told = played("aa", n_accepted=1)
    bare = RoundFinished(
        **{name: getattr(told, name) for name in RoundFinished.__slots__ if name != "sources"}
    )
    assert sources_of(bare) == sources_of(told)
