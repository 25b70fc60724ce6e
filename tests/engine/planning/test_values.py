"""Values as they are typed."""

import os
from pathlib import Path

import pytest

from engine.planning.values import (
    OptionError,
    parse_count,
    parse_file,
    parse_layers,
)


@pytest.mark.parametrize(
    ("text", "n"),
    [("8192", 8192), (" 8,192 ", 8192), ("8k", 8192), ("1.5K", 1536), ("1m", 1 << 20)],
)
def test_a_count_is_read_as_people_write_it(text: str, n: int) -> None:
    assert parse_count(text, low=1, high=1 << 24) == n


@pytest.mark.parametrize("text", ["", "0", "-5", "eight", "1.3", "9" * 14, "9" * 400, "1e9", "8kk"])
def test_what_is_no_count_is_refused_in_words(text: str) -> None:
    with pytest.raises(OptionError, match="1 to 16,777,216"):
        parse_count(text, low=1, high=1 << 24)


def test_all_layers_is_a_number_of_layers() -> None:
    assert (parse_layers("All"), parse_layers("0"), parse_layers("12")) == (-1, 0, 12)
    with pytest.raises(OptionError, match="or all"):
        parse_layers("-1")


def test_a_pipe_is_no_model_file_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(OptionError, match="a pipe or a device"):
        parse_file(str(tmp_path / "m.gguf"))


def test_a_model_file_is_its_path(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    assert parse_file(f" {path} ") == path
    path.write_bytes(b"no model")
    with pytest.raises(OptionError, match="not a GGUF file"):
        parse_file(str(path))
