"""Digests of model files: cached while a file is unchanged."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from engine.cache import namespace as file_hash
from engine.cache.namespace import FileHashes
from engine.errors import ModelFileError

OLD_NS = time.time_ns() - 10**12


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that was changed long ago, by its disk's clock."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights" * 1000)
    now = time.time_ns()
    monkeypatch.setattr(file_hash.time, "time_ns", lambda: now + 10**10)
    return path


@pytest.fixture
def is_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each file that is read."""
    read: list[int] = []

    def counted(*, digest_size: int) -> "hashlib.blake2b":
        read.append(digest_size)
        return hashlib.blake2b(digest_size=digest_size)

    monkeypatch.setattr(file_hash, "blake2b", counted)
    return read


def test_the_digest_is_that_of_the_whole_file(model: Path) -> None:
    expected = hashlib.blake2b(model.read_bytes(), digest_size=32).hexdigest()
    assert FileHashes(None).digest(model) == expected


def test_a_file_is_read_once_also_after_a_restart(
    model: Path, tmp_path: Path, is_read: list[int]
) -> None:
    first = FileHashes(tmp_path / "hashes.json").digest(model)
    assert FileHashes(tmp_path / "hashes.json").digest(model) == first
    assert len(is_read) == 1


def test_a_changed_file_of_equal_size_and_time_is_read_again(model: Path, tmp_path: Path) -> None:
    hashes = FileHashes(tmp_path / "hashes.json")
    os.utime(model, ns=(OLD_NS, OLD_NS))
    first = hashes.digest(model)
    time.sleep(0.02)  # the clock of a disk ticks every few milliseconds
    model.write_bytes(b"WEIGHTS" * 1000)
    os.utime(model, ns=(OLD_NS, OLD_NS))
    assert hashes.digest(model) != first


def test_the_digest_of_a_recently_changed_file_is_not_cached(
    tmp_path: Path, is_read: list[int]
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    hashes = FileHashes(tmp_path / "hashes.json")
    hashes.digest(model)
    hashes.digest(model)
    assert len(is_read) == 2


def test_a_file_that_took_the_place_of_the_loaded_one_is_refused(
    model: Path, tmp_path: Path
) -> None:
    hashes = FileHashes(tmp_path / "hashes.json")
    first = hashes.digest(model)
    loaded_at = model.stat().st_ctime + 0.001
    assert hashes.digest(model, unchanged_since=loaded_at) == first
    time.sleep(0.02)  # the clock of a disk ticks every few milliseconds
    newer = tmp_path / "newer.gguf"
    newer.write_bytes(b"other weights")
    newer.replace(model)
    os.utime(model, ns=(OLD_NS, OLD_NS))
    with pytest.raises(ModelFileError, match="changed after it was loaded"):
        hashes.digest(model, unchanged_since=loaded_at)


def test_a_file_that_changes_while_it_is_read_has_no_digest(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def growing(*, digest_size: int) -> "hashlib.blake2b":
        with model.open("ab") as file:
            file.write(b"more")
        return hashlib.blake2b(digest_size=digest_size)

    monkeypatch.setattr(file_hash, "blake2b", growing)
    with pytest.raises(ModelFileError, match="changed while"):
        FileHashes(None).digest(model)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"version": 1}', '{"version": 1, "digests": {"a": 1}}', "[" * 100_000],
)
def test_a_damaged_file_of_digests_is_ignored(model: Path, tmp_path: Path, content: str) -> None:
    path = tmp_path / "hashes.json"
    path.write_text(content)
    assert FileHashes(path).digest(model) == FileHashes(None).digest(model)


def test_a_missing_file_is_an_error_for_the_user(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        FileHashes(None).digest(tmp_path / "none.gguf")
