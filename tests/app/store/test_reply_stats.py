"""What is kept of a reply's statistics, by this kvchat and by older ones."""

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from app.store.chats import ChatStore
from app.store.records import StoredMessage, stats_of
from app.store.schema import STEPS, version_of
from engine.events import GenerationStats, PositionCounts, SourceCounts
from tests.app.store.conftest import ask, new_chat, reply

WRITTEN_BY_VERSION_1 = Path(__file__).parent / "old" / "version_1.db"
"""A chat with a finished and a cut reply, written by the code of database version 1."""

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


@pytest.fixture
def old(path: Path) -> Path:
    path.parent.mkdir()
    shutil.copy(WRITTEN_BY_VERSION_1, path)
    return path


def kept(store: ChatStore, stats: GenerationStats) -> StoredMessage:
    chat = new_chat(store)
    message = reply(store, chat, ask(store, chat, None, "q"))
    return store.finish_message(
        replace(
            store.message(message.id),
            content="a",
            token_ids=(1,),
            vocabulary_id="v",
            seed=7,
            finish_reason="end",
            stats=asdict(stats),
            predictor=stats.predictor,
            controller=stats.controller,
        ),
    )


def test_the_whole_statistics_of_a_reply_come_back(store: ChatStore) -> None:
    message = store.message(kept(store, MEASURED).id)
    assert stats_of(message) == MEASURED
    assert (message.predictor, message.controller, message.seed) == ("combined", "auto", 7)


def test_replies_can_be_asked_for_by_who_drafted(store: ChatStore) -> None:
    message = kept(store, MEASURED)
    rows = store._read("SELECT id FROM messages WHERE predictor = ?", "combined")
    assert [row["id"] for row in rows] == [message.id]


def test_a_file_of_version_1_keeps_its_chats(old: Path) -> None:
    with ChatStore(old) as store:
        assert len(store.notices) == 1  # the copy
        assert store._writer.run(version_of) == len(STEPS)
        [chat] = store.list_chats()
        question, answer = store.path_to(chat.head_id or 0)
        assert (question.content, answer.content) == ("Name three colours.", "Red, green and blue.")
        assert (answer.seed, answer.token_ids) == (7, (10, 11, 12, 13))
        assert [each.content for each in store.variants(answer.id)] == [answer.content, "Red, yel"]


def test_a_reply_of_version_1_has_its_counts_and_no_others(old: Path) -> None:
    with ChatStore(old) as store:
        stats = stats_of(store.message(2))
    assert stats is not None
    assert (stats.n_verified, stats.n_accepted, stats.n_emitted) == (9, 4, 11)
    assert stats.by_source == {"lookup": SourceCounts(9, 9, 6, 4, 3)}
    assert stats.by_position == ()
    assert (stats.speedup, stats.predictor, stats.controller) == (None, None, None)


def test_a_cut_reply_of_version_1_has_no_statistics(old: Path) -> None:
    with ChatStore(old) as store:
        message = store.message(3)
    assert message.stats is None
    assert stats_of(message) is None


def test_new_replies_stand_beside_old_ones(old: Path) -> None:
    with ChatStore(old) as store:
        assert stats_of(kept(store, MEASURED)) == MEASURED
    with ChatStore(old) as store:
        assert len(store.list_chats()) == 2


@pytest.mark.parametrize("spoiled", [{}, {"n_emitted": 3}, {"n_emitted": "three"}])
def test_statistics_without_their_counts_are_none(
    store: ChatStore, spoiled: dict[str, object]
) -> None:
    chat = new_chat(store)
    message = reply(store, chat, ask(store, chat, None, "q"))
    ended = store.finish_message(
        replace(
            store.message(message.id),
            content="a",
            token_ids=None,
            vocabulary_id=None,
            seed=None,
            finish_reason="end",
            stats=spoiled,
        ),
    )
    assert stats_of(ended) is None
