from random import Random

from engine.cache.recall import Recall
from engine.cache.slots import HotTier, Slot
from engine.testing import FakeBackend

LINE = list(range(10, 90))
OTHER = [*LINE[:40], *range(150, 190)]


def filled(slot: Slot, tokens: list[int], owner: str, hot: HotTier) -> Slot:
    slot.sequence.crop(0)
    for start in range(0, len(tokens), 16):
        slot.sequence.prefill(tokens[start : start + 16])
    hot.use(slot, owner)
    return slot


def test_the_sequence_that_holds_most_of_a_line_is_the_best() -> None:
    hot = HotTier(FakeBackend(n_sequences=2))
    first = filled(hot.slots[0], LINE, "chat:1", hot)
    second = filled(hot.victim(), OTHER, "chat:2", hot)

    assert hot.best([*LINE, 5]) == (first, 80)
    assert hot.best([*OTHER, 5]) == (second, 80)
    assert hot.best([1, 2]) == (second, 0)


def test_a_chat_goes_on_in_its_own_sequence_even_where_it_was_edited() -> None:
    hot = HotTier(FakeBackend(n_sequences=2))
    first = filled(hot.slots[0], LINE, "chat:1", hot)

    assert hot.slot_for(first, 40, "chat:1") is first
    assert hot.slot_for(first, len(LINE), "chat:2") is first  # nothing of it would be cut


def test_the_line_that_was_used_longest_ago_is_given_up() -> None:
    hot = HotTier(FakeBackend(n_sequences=2))
    first = filled(hot.slots[0], LINE, "chat:1", hot)
    second = filled(hot.victim(), OTHER, "chat:2", hot)
    hot.use(first, "chat:1")

    assert hot.victim() is second


def test_a_pool_of_cells_is_emptied_of_old_lines_until_there_is_room() -> None:
    hot = HotTier(FakeBackend(n_ctx=200, n_sequences=3, shares_cells=True))
    first = filled(hot.slots[0], LINE, "chat:1", hot)
    second = filled(hot.victim(), [t + 1 for t in LINE], "chat:2", hot)
    third = hot.victim()

    assert hot.make_room(third, 40) == 0
    assert hot.make_room(third, 41) == 1
    assert not first.sequence.tokens
    assert second.sequence.tokens


def test_cells_that_several_lines_share_are_counted_once() -> None:
    backend = FakeBackend(n_ctx=200, n_sequences=4, shares_cells=True)
    recall = Recall(backend)
    for chat in range(4):
        line = [*range(100), *[110 + chat] * 10]
        begun = recall.begin(line, f"chat:{chat}")
        assert begun.n_reused == (100 if chat else 0)
        for start in range(begun.n_reused, len(line), 16):
            begun.sequence.prefill(line[start : start + 16])
        recall.end(begun.slot)
        cells = {id(cell) for one in backend.opened for cell in one.cells}
        assert recall._hot.n_held == len(cells)
    assert [slot.n_tokens for slot in recall._hot.slots] == [110] * 4


def test_a_reply_waits_for_no_cells_that_it_shares_with_one_under_way() -> None:
    backend = FakeBackend(n_ctx=200, n_sequences=4, shares_cells=True)
    recall = Recall(backend)
    n_begun = 0
    for chat in range(4):
        line = [*range(100), *[110 + chat] * 10]
        if not recall.has_room([*line, 5]):
            break
        begun = recall.begin(line, f"chat:{chat}")
        n_begun += 1
        for start in range(begun.n_reused, len(line), 16):
            begun.sequence.prefill(line[start : start + 16])
    n_cells = len({id(cell) for one in backend.opened for cell in one.cells})
    assert n_begun == 4
    assert n_cells == 140
    assert not recall.has_room(list(range(500, 560)))


def test_what_lines_share_is_known_through_any_turns() -> None:
    random = Random(1)
    backend = FakeBackend(n_ctx=160, n_sequences=4, shares_cells=True)
    recall = Recall(backend)
    for turn in range(300):
        n_common = random.randrange(60)
        line = [*range(n_common), *(random.randrange(5) for _ in range(random.randrange(1, 40)))]
        begun = recall.begin(line, f"chat:{random.randrange(5)}")
        for start in range(begun.n_reused, len(line), 16):
            begun.sequence.prefill(line[start : start + 16])
        if random.random() < 0.2:
            recall.give_up(begun.slot)
        recall.end(begun.slot)
        cells = {id(cell) for one in backend.opened for cell in one.cells}
        assert recall._hot.n_held == len(cells), turn


def test_separate_cells_need_no_room_of_others() -> None:
    hot = HotTier(FakeBackend(n_ctx=100, n_sequences=2))
    first = filled(hot.slots[0], LINE, "chat:1", hot)

    assert hot.make_room(hot.victim(), 90) == 0
    assert first.sequence.tokens


def test_a_line_whose_middle_was_dropped_is_found_and_the_gap_measured() -> None:
    hot = HotTier(FakeBackend())
    slot = filled(hot.slots[0], LINE, "chat:1", hot)
    shorter = [*LINE[:10], *LINE[30:], 7, 8]

    assert hot.shiftable(shorter, "chat:1") == (slot, 10, 20)
    assert hot.shiftable(shorter, "chat:2") is None
    assert hot.shiftable([*LINE, 7], "chat:1") is None
    assert hot.shiftable([*LINE[:10], *range(200, 240)], "chat:1") is None


def test_nothing_is_shifted_where_the_model_cannot() -> None:
    hot = HotTier(FakeBackend(can_shift=False))
    filled(hot.slots[0], LINE, "chat:1", hot)

    assert hot.shiftable([*LINE[:10], *LINE[30:]], "chat:1") is None


def test_a_line_that_was_shifted_goes_on_without_a_further_gap() -> None:
    hot = HotTier(FakeBackend())
    slot = filled(hot.slots[0], LINE, "chat:1", hot)
    slot.sequence.shift(10, 20)
    slot.is_pure = False

    assert hot.shiftable([*LINE[:10], *LINE[30:], 7], "chat:1") == (slot, 60, 0)
    assert hot.shiftable([*LINE[:10], *LINE[50:], 7], "chat:1") == (slot, 10, 20)


def test_what_was_shifted_serves_no_line_by_its_tokens_alone() -> None:
    hot = HotTier(FakeBackend())
    slot = filled(hot.slots[0], LINE, "chat:1", hot)
    slot.sequence.shift(10, 20)
    slot.is_pure = False

    assert hot.best(list(slot.sequence.tokens)) == (slot, 0)
