"""Whole or not at all."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.files import drafting_process, replace_file


def test_a_file_is_replaced_by_all_parts_in_order(tmp_path: Path) -> None:
    path = tmp_path / "states" / "one.kv"
    replace_file(path, [b"ab", memoryview(b"cd")], is_durable=True)
    replace_file(path, [b"new ", b"content"], is_durable=False)
    assert path.read_bytes() == b"new content"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_and_its_new_folder_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "states" / "one.kv"
    replace_file(path, [b"secret"], is_durable=False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "one.kv"
    path.write_bytes(b"old")

    def parts() -> Iterator[bytes]:
        yield b"half"
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_file(path, parts(), is_durable=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_draft_names_the_process_that_writes_it(tmp_path: Path) -> None:
    seen: list[int | None] = []

    def parts() -> Iterator[bytes]:
        seen.extend(drafting_process(path) for path in tmp_path.iterdir())
        yield b"content"

    replace_file(tmp_path / "one.kv", parts(), is_durable=False)
    assert seen == [os.getpid()]
    assert drafting_process(tmp_path / "one.kv") is None
    assert drafting_process(tmp_path / "one.12.kv") is None
    assert drafting_process(tmp_path / "one.new") is None
