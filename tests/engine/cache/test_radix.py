"""The prefix tree against lines kept in a plain list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import common_prefix
from engine.cache.radix import RadixTree, pack, unpack

lines = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=12)
line = st.lists(st.integers(0, 2), max_size=11)


def filled(all_lines: list[list[int]]) -> RadixTree[int]:
    tree: RadixTree[int] = RadixTree()
    for index, tokens in enumerate(all_lines):
        tree.insert(pack(tokens), index)
    return tree


def check(tree: RadixTree[int]) -> None:
    """The shape that a radix tree has to have."""
    nodes = list(tree.nodes())
    assert tree.n_tokens == sum(node.n_tokens for node in nodes)
    for node in [tree.root, *nodes]:
        for name, child in node.children.items():
            assert child.parent is node
            assert child.edge[:4] == name
            assert child.start == node.end
            assert child.n_tokens > 0
            assert node.n_locks >= child.n_locks or node is tree.root


@given(lines, line)
def test_a_match_is_the_longest_start_that_any_line_shares(all_lines, asked):
    tree = filled(all_lines)
    check(tree)
    found = tree.match(pack(asked))
    assert found.n_tokens == max((common_prefix(each, asked) for each in all_lines), default=0)
    spelled = b"".join(node.edge for node in found.nodes)
    assert spelled[: found.n_tokens * 4] == pack(asked[: found.n_tokens])


@given(lines)
def test_every_line_ends_at_a_node_that_holds_its_last_value(all_lines):
    tree = filled(all_lines)
    for tokens in all_lines:
        found = tree.match(pack(tokens))
        last = max(index for index, each in enumerate(all_lines) if each == tokens)
        assert not found.is_inside
        assert found.nodes[-1].value == last
        assert unpack(tree.line(found.nodes[-1])) == tuple(tokens)


@given(lines, st.integers(0, 11))
def test_taking_a_value_away_leaves_the_tree_as_if_it_was_never_there(all_lines, index):
    if index >= len(all_lines):
        return
    tree = filled(all_lines)
    node = tree.match(pack(all_lines[index])).nodes[-1]
    node.value = None
    tree.tidy(node)
    check(tree)
    others = [each for each in all_lines if each != all_lines[index]]
    never = filled(others)
    assert sorted(tree.line(each) for each in tree.nodes()) == sorted(
        never.line(each) for each in never.nodes()
    )


@pytest.mark.parametrize("tokens", [[], [0], [1, -1, 2**31 - 1, -(2**31)]])
def test_a_packed_line_is_the_line(tokens):
    assert unpack(pack(tokens)) == tuple(tokens)
