"""A chat whose cache type was changed goes on with what was kept in the other type."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cache.namespace import (
    Namespace,
    coarsest,
    differ_in_types_only,
    kv_types,
    parse_kv_types,
)
from engine.cache.prefix_cache import PrefixCache
from engine.cache.recall import Recall, Recalled
from engine.cache.report import CacheReport, CacheSettings
from engine.cache.requantised import OtherTypes, Requantised
from engine.cache.snapshot_store import SnapshotStore
from engine.configuration import KVTypeName, KVTypes
from engine.testing import FakeBackend

SETTINGS = CacheSettings(min_tokens=4, checkpoint_tokens=0, reserve_bytes=0)
LINE = [(5 * n + n * n // 3) % 250 for n in range(120)]
CHAT, ANOTHER = "chat:1", "chat:2"


def namespace(k: KVTypeName, v: KVTypeName, model: str = "a") -> Namespace:
    fields = (("model hash", model), ("K type", k), ("V type", v))
    return Namespace(f"{model}-{k}-{v}", "/models/made.gguf", fields)


class Life:
    """One load of a model in some cache types, from opening to writing everything down."""

    def __init__(
        self, folder: SnapshotStore, k: KVTypeName, v: KVTypeName, backend: FakeBackend, model: str
    ) -> None:
        self.backend = backend
        mine = namespace(k, v, model)
        self.tiers = PrefixCache(
            mine,
            can_slice=backend.can_slice,
            split_state=backend.split_state,
            store=folder,
            settings=SETTINGS,
            in_background=False,
        )
        self.recall = Recall(backend)
        self.recall.attach(self.tiers, SETTINGS, OtherTypes(folder, mine, backend))

    def say(self, tokens: list[int], owner: str = CHAT) -> Recalled:
        recalled = self.recall.begin(tokens, owner)
        for start in range(recalled.n_reused, len(tokens), 16):
            recalled.sequence.prefill(tokens[start : start + 16])
        self.recall.end(recalled.slot)
        self.recall.keep_ended()
        return recalled

    def end(self) -> CacheReport:
        report = self.tiers.report()
        self.tiers.close(5.0)
        return report


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SnapshotStore]:
    with SnapshotStore(tmp_path / "cold") as folder:
        yield folder


def live(
    folder: SnapshotStore,
    k: KVTypeName,
    v: KVTypeName | None = None,
    *,
    model: str = "a",
    can_crop: bool = True,
    state_format: str = "fake state 1",
) -> Life:
    backend = FakeBackend(can_crop=can_crop, state_format=state_format)
    return Life(folder, k, k if v is None else v, backend, model)


def kept(folder: SnapshotStore, k: KVTypeName, *lines: list[int], can_crop: bool = True) -> None:
    life = live(folder, k, can_crop=can_crop)
    for line in lines:
        life.say(line)
    life.end()


@pytest.mark.parametrize("can_crop", [True, False])
def test_a_chat_in_another_type_is_converted_and_not_computed(
    folder: SnapshotStore, can_crop: bool
) -> None:
    kept(folder, "f16", LINE[:60], can_crop=can_crop)
    life = live(folder, "q8_0", can_crop=can_crop)
    recalled = life.say(LINE[:60])
    assert recalled.n_reused == 60
    assert life.backend.n_decoded == 0
    assert recalled.requantised is not None
    assert (recalled.requantised.origin, recalled.requantised.n_tokens) == (
        KVTypes("f16", "f16"),
        60,
    )
    assert list(recalled.sequence.tokens) == LINE[:60]


def test_the_same_types_convert_nothing(folder: SnapshotStore) -> None:
    kept(folder, "q8_0", LINE[:60])
    life = live(folder, "q8_0")
    assert life.say(LINE[:60]).requantised is None
    assert life.backend.n_requantised == 0


def test_only_what_the_own_types_lack_is_converted(folder: SnapshotStore) -> None:
    kept(folder, "f16", LINE[:50])
    kept(folder, "q4_0", LINE[:90])  # itself requantised up to 50, computed from there on
    life = live(folder, "f16")
    recalled = life.say(LINE[:90])
    assert recalled.n_reused == 90
    assert recalled.requantised is not None
    assert recalled.requantised.n_tokens == 40
    origins = {(entry.start, entry.n_tokens): entry.origin for entry in life.end().entries}
    assert origins == {(0, 50): "", (50, 90): "q4_0"}


def test_another_chat_is_not_given_what_a_coarse_type_lost(folder: SnapshotStore) -> None:
    kept(folder, "q4_0", LINE[:60])
    life = live(folder, "f16")
    recalled = life.say(LINE[:60], ANOTHER)
    assert (recalled.n_reused, recalled.requantised) == (0, None)
    assert life.say(LINE[:60], "").requantised is None


def test_a_shared_start_is_converted_as_far_as_the_chat_itself_used_it(
    folder: SnapshotStore,
) -> None:
    life = live(folder, "q8_0")
    life.say(LINE[:40], CHAT)
    life.say([*LINE[:40], *LINE[80:110]], ANOTHER)
    life.end()
    life = live(folder, "f16")
    recalled = life.say([*LINE[:40], *LINE[80:110]], CHAT)
    assert recalled.n_reused == 40


def test_another_model_is_no_source(folder: SnapshotStore) -> None:
    kept(folder, "f16", LINE[:60])
    assert live(folder, "q8_0", model="b").say(LINE[:60]).requantised is None


def test_of_several_types_with_as_much_the_most_precise_is_taken(folder: SnapshotStore) -> None:
    kept(folder, "q4_0", LINE[:60])
    kept(folder, "f16", LINE[:60])  # requantised from q4_0, which it does not hide
    life = live(folder, "q8_0")
    recalled = life.say(LINE[:60])
    assert recalled.requantised is not None
    assert recalled.requantised.origin == KVTypes("q4_0", "q4_0")
    assert "What q4_0 lost of them stays lost." in recalled.requantised.sentence


def test_the_origin_outlives_the_engine(folder: SnapshotStore) -> None:
    kept(folder, "q4_0", LINE[:60])
    kept(folder, "f16", LINE[:60])
    (entry,) = live(folder, "f16").tiers.report().entries
    assert entry.origin == "q4_0"
    (written,) = folder.states(namespace("f16", "f16").key)
    assert written.origin == "q4_0"
    folder.read(written)


def test_the_price_is_a_line_of_the_log(folder: SnapshotStore) -> None:
    kept(folder, "f16", LINE[:60])
    life = live(folder, "q8_0", "q4_0")
    life.say(LINE[:60])
    notes = [note.text for note in life.end().notes]
    assert len(notes) == 1
    assert notes[0].startswith("60 tokens were requantised from f16 to q8_0/q4_0 in ")


def test_a_layout_that_forbids_it_is_said_once_and_the_chat_is_read_again(
    folder: SnapshotStore,
) -> None:
    kept(folder, "f16", LINE[:60])
    life = live(folder, "q8_0", state_format="fake state without types")
    assert life.say(LINE[:60]).n_reused == 0
    life.say(LINE[:90])
    notes = life.end().notes
    assert [note.is_problem for note in notes] == [True]
    assert "keeps no keys and values that have types" in notes[0].text


def test_a_state_that_is_gone_from_disk_is_computed(folder: SnapshotStore) -> None:
    kept(folder, "f16", LINE[:60])
    for path in folder.path.glob("*.kv"):
        path.unlink()
    life = live(folder, "q8_0")
    assert life.say(LINE[:60]).n_reused == 0
    (note,) = life.end().notes
    assert "is read again" in note.text


def test_types_are_read_and_compared() -> None:
    types = KVTypes("q8_0", "q4_0")
    assert parse_kv_types("q8_0/q4_0") == kv_types(namespace("q8_0", "q4_0")) == types
    for wrong in ("", "q8_0/q9_9", "a/b", "q8_0/q4_0/f16", "\x1b[2J/f16"):
        assert parse_kv_types(wrong) is None
    assert kv_types(Namespace("none", "m", ())) is None
    assert coarsest(types, KVTypes("q4_0", "f16")) == KVTypes("q4_0", "q4_0")


def test_only_namespaces_of_other_types_are_alike() -> None:
    one = namespace("f16", "f16")
    assert differ_in_types_only(one, namespace("q8_0", "f16"))
    assert not differ_in_types_only(one, one)
    assert not differ_in_types_only(one, namespace("q8_0", "f16", "b"))
    flash = [
        Namespace(how, "m", (*namespace(k, k).fields, ("flash attention", how)))
        for k, how in (("f16", "auto"), ("q8_0", "on"), ("q4_0", "off"))
    ]
    assert differ_in_types_only(flash[0], flash[1])
    assert not differ_in_types_only(flash[0], flash[2])
    more = Namespace("x", "m", (*one.fields, ("offload", "none")))
    assert not differ_in_types_only(one, more)


def test_a_gain_is_told_without_a_loss() -> None:
    done = Requantised(KVTypes("f16", "f16"), KVTypes("q8_0", "q8_0"), 1234, 0.0456)
    assert done.sentence == (
        "1,234 tokens were requantised from f16 to q8_0 in 46 ms instead of being read again. "
        "They are as precise as q8_0 is."
    )
