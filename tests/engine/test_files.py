"""Whole or not at all."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.files import (
    NewestEntries,
    acquire_lock,
    is_file,
    open_file,
    read_bytes,
    read_file_or_pipe,
    read_text,
    replace_file,
)
from engine.presets.export import ExportRequest, write
from engine.presets.formats import FORMATS
from engine.presets.library import save_preset
from engine.presets.preset import Preset

SHELL = FORMATS["shell"].render(ExportRequest(Configuration(Path("/m.gguf"), 512), name="m"))
WRITERS: dict[str, Callable[[Path], object]] = {
    "entries.json": lambda path: NewestEntries(path, "cards", 1, 9, int).add("card", 1),
    "mine.toml": lambda path: save_preset(Preset(name="mine"), path.parent, replace_existing=True),
    "serve.sh": lambda path: write(SHELL, path, replace_existing=True),
}


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_path_without_a_name_is_refused_as_a_folder(path: str) -> None:
    with pytest.raises(IsADirectoryError):
        replace_file(Path(path), [b"x"], is_durable=False)


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


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_file_of_ours_is_replaced_whole_and_nobody_elses_draft_is_touched(
    tmp_path: Path, name: str
) -> None:
    path, old = tmp_path / name, tmp_path / "old"
    path.write_text("{}")
    os.link(path, old)
    drafts = [path.with_suffix(".new"), path.with_suffix(".partial"), tmp_path / f".{name}.partial"]
    for draft in drafts:
        draft.write_text("half of another process")

    WRITERS[name](path)

    assert old.read_text() == "{}"
    assert path.read_text() != "{}"
    assert [draft.read_text() for draft in drafts] == ["half of another process"] * len(drafts)
    assert len(list(tmp_path.iterdir())) == 2 + len(drafts)


def test_a_file_for_others_is_as_open_as_the_umask_lets_it_be(tmp_path: Path) -> None:
    usual = os.umask(0o027)
    try:
        replace_file(tmp_path / "serve.sh", [b"#!"], is_durable=False, mode=0o777)
    finally:
        os.umask(usual)
    assert stat.S_IMODE((tmp_path / "serve.sh").stat().st_mode) == 0o750


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "link"])
def test_what_might_never_end_is_no_file(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for read in (open_file, partial(read_bytes, limit=1), partial(read_text, limit=1)):
        with pytest.raises(OSError, match="it is a pipe or a device, not a file"):
            read(tmp_path / name)


def from_pipe(command: str, limit: int = 1 << 20) -> bytes:
    """What a command prints, read by the name that a shell gives its `<(command)`."""
    with subprocess.Popen(("sh", "-c", command), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            path = Path(f"/dev/fd/{process.stdout.fileno()}")
            return read_file_or_pipe(path, limit=limit)
        finally:
            process.kill()


@pytest.mark.parametrize("read", [open_file, partial(read_bytes, limit=9)])
def test_a_name_with_a_zero_byte_is_no_file(read: Callable[[Path], object]) -> None:
    with pytest.raises(OSError, match="NUL byte"):
        read(Path("/a\0b"))
    with pytest.raises(OSError, match="NUL byte"):
        read_file_or_pipe(Path("/a\0b"), limit=9)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    assert from_pipe("printf one; sleep 0.1; printf two; head -c 200000 /dev/zero") == (
        b"onetwo" + bytes(200_000)
    )
    (tmp_path / "file").write_bytes(b"a file")
    assert read_file_or_pipe(tmp_path / "file", limit=6) == b"a file"


def test_a_pipe_that_does_not_end_is_read_up_to_its_limit() -> None:
    with pytest.raises(OSError, match="limit of 1,000 bytes"):
        from_pipe("yes", limit=1000)
    with pytest.raises(OSError, match="it is a pipe or a device, not a file"):
        read_file_or_pipe(Path("/dev/zero"), limit=1)


def test_a_file_is_read_up_to_its_limit_and_no_byte_further(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\r\n\xc3\xa9")
    assert read_text(path, limit=5) == "a\né"
    assert read_bytes(path, limit=5) == b"a\r\n\xc3\xa9"
    with pytest.raises(OSError, match="limit of 4 bytes"):
        read_bytes(path, limit=4)


HOLD = """
import sys, time
from pathlib import Path
from engine.files import acquire_lock
lock = acquire_lock(Path(sys.argv[1]))
print("held" if lock else "refused", flush=True)
time.sleep(60)
"""


def test_a_name_is_held_until_its_process_ends_however_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "name.lock"
    with subprocess.Popen(
        (sys.executable, "-c", HOLD, str(path)), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert acquire_lock(path) is None
        process.kill()
    lock = acquire_lock(path)
    assert lock is not None
    with lock:
        assert acquire_lock(path) is None
    lock.close()
    assert not path.exists()


def test_a_name_in_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OSError, match="taken"):
        acquire_lock(tmp_path / "taken" / "name.lock")


def test_a_name_that_no_file_can_have_has_none(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert is_file(tmp_path / "a")
    assert not any(map(is_file, (tmp_path, tmp_path / ("b" * 300), Path("/a\0b"))))
