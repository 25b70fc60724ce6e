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
