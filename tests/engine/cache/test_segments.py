"""The index of segments, compared with a plain list of sequences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import common_prefix
from engine.cache.index import SegmentIndex
from engine.cache.segments import (
    CachedSegment,
    new_segment,
    pack,
    unpack,
)

sequence = st.lists(st.integers(0, 2), min_size=1, max_size=11)
sequences = st.lists(sequence, max_size=12)


def add(index: SegmentIndex, tokens: list[int]) -> None:
    """Add a sequence from the end of the last segment that it passes."""
    packed = pack(tokens)
    chain, n_tokens, _ = index.longest(packed, 99)
    whole = [entry.segment for entry in chain if entry.segment.end <= n_tokens]
    parent = whole[-1] if whole else None
    start = 0 if parent is None else parent.end
    if start < len(tokens):
        index.add(
            CachedSegment(new_segment("made up", packed[4 * start :], parent=parent, nbytes=1))
        )


def filled(all_sequences: list[list[int]]) -> SegmentIndex:
    index = SegmentIndex(can_slice=True)
    for tokens in all_sequences:
        add(index, tokens)
    return index


def tokens_of(chain: list[CachedSegment]) -> list[int]:
    """The tokens of consecutive segments."""
    found: list[int] = []
    for entry in chain:
        assert entry.segment.start == len(found)
        found += unpack(entry.segment.packed)
    return found


@given(sequences, sequence)
def test_a_match_is_the_longest_prefix_that_any_sequence_shares(all_sequences, prompt):
    chain, n_tokens, n_known = filled(all_sequences).longest(pack(prompt), 99)
    expected = max((common_prefix(each, prompt) for each in all_sequences), default=0)
    assert n_tokens == n_known == expected
    assert tokens_of(chain)[:n_tokens] == prompt[:n_tokens]
    assert all(entry.segment.end <= n_tokens for entry in chain[:-1])


@given(sequences, sequence, st.integers(0, 11))
def test_no_segment_beyond_the_context_is_restored(all_sequences, prompt, n_ctx):
    chain, n_tokens, _ = filled(all_sequences).longest(pack(prompt), n_ctx)
    assert len(tokens_of(chain)) <= n_ctx
    assert n_tokens <= len(tokens_of(chain))


@given(sequences, sequence)
def test_a_whole_state_is_restored_only_for_a_prompt_that_contains_it(all_sequences, prompt):
    index = SegmentIndex(can_slice=False)
    for tokens in {tuple(each) for each in all_sequences}:
        index.add(CachedSegment(new_segment("made up", pack(tokens), nbytes=1)))
    chain, n_tokens, n_known = index.longest(pack(prompt), 99)
    contained = [len(each) for each in all_sequences if prompt[: len(each)] == each]
    assert n_tokens == len(tokens_of(chain)) == max(contained, default=0)
    assert n_known == max((common_prefix(each, prompt) for each in all_sequences), default=0)


@given(sequences, st.integers(0, 99))
def test_a_removed_segment_takes_its_descendants_along(all_sequences, number):
    index = filled(all_sequences)
    if not index.entries:
        return
    entry = list(index.entries.values())[number % len(index.entries)]
    removed = index.remove(entry)
    assert removed[0] is entry
    for each in index.entries.values():
        assert index.chain(each)[-1] is each
        assert not set(index.chain(each)) & set(removed)


@given(sequences)
def test_segments_of_a_disk_make_the_same_index_and_those_without_a_parent_none(all_sequences):
    segments = [entry.segment for entry in filled(all_sequences).entries.values()]
    again = SegmentIndex(can_slice=True)
    assert again.load(segments[::-1]) == set()
    assert {entry.segment for entry in again.entries.values()} == set(segments)
    rest = [each for each in segments if each.start]
    assert SegmentIndex(can_slice=True).load(rest) == {each.key for each in rest}
    whole = SegmentIndex(can_slice=False)
    assert whole.load(segments) == {each.key for each in rest}


@pytest.mark.parametrize("tokens", [[], [0], [1, -1, 2**31 - 1, -(2**31)]])
def test_packed_tokens_are_the_tokens(tokens):
    assert unpack(pack(tokens)) == tuple(tokens)


def test_a_key_depends_on_model_start_and_all_tokens():
    first = new_segment("one", pack([1, 2]), nbytes=1)
    keys = {
        first.key,
        new_segment("two", pack([1, 2]), nbytes=1).key,
        new_segment("one", pack([1, 3]), nbytes=1).key,
        new_segment("one", pack([1, 2]), parent=first, nbytes=1).key,
        new_segment("one", pack([3]), parent=first, nbytes=1).key,
        new_segment("one", pack([1, 2, 3]), nbytes=1).key,
    }
    assert len(keys) == 6
