"""The saved statistics of a reply."""

from dataclasses import asdict, replace

import pytest

from app.store.chats import ChatStore
from app.store.records import StoredMessage, stats_of
from engine.events import GenerationStats, PositionCounts, SourceCounts
from tests.app.store.conftest import ask, new_chat, reply

MEASURED = GenerationStats(
    n_prompt=20,
    n_rounds=4,
    n_drafted=12,
    n_verified=9,
    n_examined=7,
    n_accepted=5,
    n_emitted=9,
    by_source={"lookup": SourceCounts(8, 6, 5, 4, 3), "draft": SourceCounts(4, 3, 2, 1, 1)},
    by_position=(PositionCounts(4, 3), PositionCounts(3, 2)),
    n_near_ties=2,
    prefill_s=0.2,
    first_token_s=0.25,
    decode_s=0.5,
    decode_tps=18.0,
    plain_step_s=0.1,
    plain_spread=0.02,
    saved_s=0.4,
    saved_error_s=0.05,
    predictor="combined",
    controller="auto",
)


def saved(store: ChatStore, stats: GenerationStats) -> StoredMessage:
    chat = new_chat(store)
    message = reply(store, chat, ask(store, chat, None, "q"))
    names = {"predictor": stats.predictor, "controller": stats.controller}
    ended = replace(message, seed=7, finish_reason="end", stats=asdict(stats), **names)
    return store.finish_message(ended)


def test_the_whole_statistics_of_a_reply_come_back(store: ChatStore) -> None:
    message = store.message(saved(store, MEASURED).id)
    assert stats_of(message) == MEASURED
    assert (message.predictor, message.controller, message.seed) == ("combined", "auto", 7)


@pytest.mark.parametrize("spoiled", [{}, {"n_emitted": 3}, {"n_emitted": "three"}])
def test_statistics_without_their_counts_are_none(
    store: ChatStore, spoiled: dict[str, object]
) -> None:
    chat = new_chat(store)
    message = reply(store, chat, ask(store, chat, None, "q"))
    ended = store.finish_message(replace(message, finish_reason="end", stats=spoiled))
    assert stats_of(ended) is None
