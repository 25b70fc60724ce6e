"""The picture of the errors is what there is."""

import re

from engine import errors


def test_the_tree_names_each_error_of_the_engine_once() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    there = [one.__name__ for one in vars(errors).values() if isinstance(one, type)]
    assert ["EngineError", *drawn] == there
