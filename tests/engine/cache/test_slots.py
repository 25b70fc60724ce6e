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
