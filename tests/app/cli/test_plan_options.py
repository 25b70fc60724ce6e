"""One spelling of amounts and one name of an option, whichever command takes it."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest

from app.cli import main
from app.cli.options import Count, Size
from engine.memory.units import GIB
from tests.app.cli.conftest import json_of, refusal
from tests.support.gguf_files import header, write

MODEL = "qwen3-30b-a3b"


def options_of(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    for param in command.params:
        if isinstance(param, click.Option):
            yield from ((flag, param) for flag in param.opts)


COMMANDS = ("run", "plan", "fit", "compare", "bench", "export", "pairs")


def test_an_option_has_one_name_and_one_spelling_in_every_command() -> None:
    group = main.cli
    assert isinstance(group, click.Group)
    found: dict[str, dict[str, str]] = {}
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        for flag, option in options_of(command):
            found.setdefault(flag, {})[name] = str(option.type.to_info_dict())
            is_whole = isinstance(option.type, click.IntRange)
            assert not is_whole or flag in ("--port", "--seed"), f"{flag} takes no 8k"
    assert {*found["--tokens"]} == {"run"}, "a number of tokens is --max-tokens"
    differing = {flag: types for flag, types in found.items() if len(set(types.values())) > 1}
    # `run` reads a batch of prompts from a file, `bench` writes its JSON to one; a speed is
    # measured over two tokens and more; a plan may leave one type of cache open, and `fit` takes
    # a list of types.
    others = {"--kv", "--type-k", "--type-v", "--batch"}
    usual = {"--seed", "--temperature", "--format", "--max-tokens", "--json"}
    assert {*differing} <= usual | others


@pytest.mark.parametrize("text", ["32k", "32768", "32,768"])
@pytest.mark.parametrize("command", ["plan", "export"])
def test_a_context_is_typed_as_a_number_or_with_its_unit(command: str, text: str) -> None:
    found = json_of(command, MODEL, "--vram", "48", "--ctx", text)
    assert "32768" in json.dumps(found.get("args") or found["arguments"])


def test_no_number_of_an_option_is_nan_or_without_an_end() -> None:
    group = main.cli
    assert isinstance(group, click.Group)
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        for _, option in options_of(command):
            if isinstance(option.type, click.FloatRange) or option.type is click.FLOAT:
                for text in ("nan", "inf", "-inf"):
                    with pytest.raises(click.BadParameter):
                        option.type.convert(text, option, context)


def test_sizes_are_gib_where_no_unit_is_typed() -> None:
    assert Size().convert("8", None, None) == Size().convert("8GiB", None, None) == 8 * GIB
    with pytest.raises(click.BadParameter, match="8589934592B"):
        Size().convert("8589934592", None, None)


@pytest.mark.parametrize("text", ["", "many", "0", "-1", "1.5", "3GiB"])
def test_what_is_no_count_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"1 to 100$"):
        Count(1, 100).convert(text, None, None)


@pytest.mark.parametrize("command", ["plan", "export"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cpu-moe"], ["--cpu-moe"]),
        (["--n-cpu-moe", "20"], ["--n-cpu-moe", "20"]),
        (["--n-cpu-moe", "all"], ["--cpu-moe"]),
        (["--no-kv-offload"], ["--no-kv-offload"]),
        (["--tensor-split", "3:1"], ["--tensor-split", "3,1"]),
        (["--split-mode", "none", "--main-gpu", "1"], ["--split-mode", "none", "--main-gpu", "1"]),
        (["--threads", "6"], ["--threads", "6"]),
        (["--gpu-layers", "12"], ["--n-gpu-layers", "12"]),
        (["--slots", "2", "--unified"], ["--kv-unified"]),
    ],
)
def test_plan_and_export_have_the_shown_options_the_planner(
    command: str, options: list[str], words: list[str]
) -> None:
    found = json_of(command, MODEL, "--vram", "24GiB", "--card", "RTX 3060", *options)
    arguments = found.get("args") or found["arguments"]
    start = arguments.index(words[0])
    assert arguments[start : start + len(words)] == words


def test_a_projector_and_adapters_are_planned_beside_the_model(tmp_path: Path) -> None:
    names = ("a.gguf", "b.gguf")
    values = {"general.type": "adapter", "general.architecture": "qwen3"}
    data = header(values, [("blk.0.attn_q.weight.lora_a", (32,), 0, 0)])
    adapters = [write(tmp_path / name, data, data_bytes=128) for name in names]
    projector = write(tmp_path / "p.gguf", header({"general.architecture": "clip"}))
    options = ["--lora", str(adapters[0]), "--lora", str(adapters[1]), "--mmproj", str(projector)]
    found = json_of("export", "qwen3-4b", "--vram", "8GiB", *options, "--no-mmproj-offload")
    arguments = found["args"]
    assert arguments[arguments.index("--lora") + 1] == ",".join(map(str, adapters))
    assert arguments[arguments.index("--mmproj") + 1] == str(projector)
    assert "--no-mmproj-offload" in arguments
    scaled = ["--lora", f"{adapters[0]}:0.5", "--lora", str(adapters[1])]
    found = json_of("export", "qwen3-4b", "--vram", "8GiB", *scaled)
    arguments = found["args"]
    written = f"{adapters[0]}:0.5,{adapters[1]}:1"
    assert arguments[arguments.index("--lora-scaled") + 1] == written


@pytest.mark.parametrize(("option", "kind"), [("--mmproj", "projector"), ("--lora", "adapter")])
@pytest.mark.parametrize("command", ["plan", "export"])
def test_a_file_of_another_kind_is_no_projector_and_no_adapter(
    command: str, option: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write(tmp_path / "other.gguf", header({"general.architecture": "llama"}))
    assert main.run([command, MODEL, option, str(other)]) == 1
    assert (
        f"other.gguf cannot be used as {kind}: its header declares model" in capsys.readouterr().err
    )


def test_ram_and_cards_are_planned_for_together() -> None:
    found = json_of("plan", "qwen3-4b", "--card", "RTX 3060", "--ram", "64GiB")
    devices = found["devices"]
    assert "RTX 3060" in devices[0]["name"]
    assert devices[-1]["free_memory_bytes"] == 64 * GIB


@pytest.mark.parametrize(("asked", "n_threads"), [("auto", None), ("6", 6), ("Auto", None)])
def test_threads_are_a_number_or_left_to_the_moment(
    asked: str, n_threads: int | None, tmp_path: Path
) -> None:
    preset = tmp_path / "four.toml"
    preset.write_text('name = "four"\nn_threads = 4\n')
    found = json_of("export", MODEL, "--vram", "48", "--preset", str(preset), "--threads", asked)
    arguments = found.get("args")
    flag = ["--threads", str(n_threads)]
    assert (flag in map(list, pairwise(arguments))) is (n_threads is not None)
    assert ("--threads" in arguments) is (n_threads is not None)


@pytest.mark.parametrize("asked", ["0", "1025", "all", "2.5"])
def test_threads_that_are_neither_are_refused_with_what_there_is(asked: str) -> None:
    assert "1 to 1,024, or auto" in refusal("plan", MODEL, "--threads", asked, code=2)
