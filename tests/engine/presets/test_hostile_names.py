"""Names as hostile as files can have them: every export hands them on whole, or is refused."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings

from engine.configuration import Adapter, Configuration
from engine.presets.export import UNWRITABLE, ExportError, ExportRequest
from engine.presets.formats import FORMATS
from engine.presets.llama_server import arguments
from tests.support.drawn_configurations import CONFIGURATIONS

NAMES = (
    "plain", "two words", " lead", "trail ", "-x", "--help", "--model", "-", "a'b", "'", "''",
    'a"b', '"', '""', "a\\b", "\\", "\\\\", "\\n", "a\\'b", "$HOME", "${HOME}", "$$",
    "$(touch PWNED)", "$", "${", "${PORT}", "$''{", "`touch PWNED`", "`", ";touch PWNED",
    "&& touch PWNED", "| touch PWNED", "> PWNED", "< PWNED", "& touch PWNED &", "# no comment",
    "a#b", "a # b", "!history", "~", "~root", "*", "?", "[a]", "{a,b}", "(a)", "%h", "%%", "100%",
    "%n%i", "@x", ":x", "+x", "!x", "|x", "a: b", "a:", "- a", "? a", "&a", "*a", "!!str", "a, b",
    "{}", "[]", "null", "yes", "0x1f", "1e3", "=", "a=b", "<<", "---", "...", "[section]",
    "key = value", ";comment", '"""', "FROM x", "PARAMETER a b", "ünïcode 日本 🦙", "é", "\xa0x",
    "\ufeffx", "a\u200bb", "a\u202eb", "\u2066a", "x" * 2000,
)  # fmt: skip
REFUSED = (
    "a\nb", "a\n$(touch PWNED)", "a\n- b", "a\rb", "a\tb", "a\x00b", "a\x1b]0;owned\x07b",
    "a\x7fb", "a\x9bb", "a\x85b", "a\u2028b", "a\u2029b", "a\ufffeb", "a\uffffb", "a\udcffb",
)  # fmt: skip


FAKE_SERVER = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done
"""


def request_of(name: str) -> ExportRequest:
    """A hostile name wherever a name can stand."""
    parts = [name[start : start + 200] for start in range(0, len(name), 200)]
    path = Path("/models", *parts[:-1], f"{parts[-1]}.gguf")
    configuration = Configuration(path, 512, adapters=(Adapter(path),), mmproj_path=path)
    return ExportRequest(configuration, name=name, host=name, warnings=(name, f"# {name}"))


def planned(request: ExportRequest) -> list[str]:
    return [*arguments(request.configuration), "--host", request.host, "--port", "8080"]


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A folder in which nothing but the stub is to be, and where commands run."""
    path = tmp_path / "bin" / "llama-server"
    path.parent.mkdir()
    path.write_text(FAKE_SERVER, encoding="utf-8")
    path.chmod(0o755)
    return path


def started_by(shell: str, text: str, stub: Path, *further: str) -> list[str]:
    """The words that a shell hands to llama-server."""
    place = stub.parent.parent / "here"
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        [shell, "-c", text, "serve.sh", *further], capture_output=True, check=True, cwd=place,
        env={"PATH": f"{stub.parent}:{os.environ['PATH']}", "HOME": "/home/x", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert not [*place.iterdir()], "nothing else ran"
    return done.stdout.decode().split("\0")[:-1]


def ini_sections(text: str) -> dict[str, dict[str, str]]:
    """The values of an INI, by llama.cpp b11434's grammar (`parse_ini_from_file`, preset.cpp)."""
    found: dict[str, dict[str, str]] = {"default": {}}
    section = "default"
    for line in re.split("\r\n|\n|\r", text):
        if match := re.fullmatch(r"\[[ \t]*([^]]+?)[ \t]*\][ \t]*([;#].*)?", line):
            section = match[1]
            found[section] = {}
        elif match := re.match(r"([a-zA-Z_][a-zA-Z0-9_.-]*)[ \t]*=[ \t]*", line):
            found[section][match[1]] = re.split(r"[ \t]*[;#]|[ \t]*$", line[match.end() :])[0]
        else:
            assert re.fullmatch(r"[ \t]*([;#].*)?", line), f"llama.cpp refuses the line {line!r}"
    return found


def systemd_words(unit: str) -> list[str]:
    """Split ExecStart as in systemd.service(5): quotes, C escapes, then % and $ doubled."""
    line = re.search(r"ExecStart=((?:.*\\\n)*.*)", unit)
    assert line is not None
    words, current, quote, text = [], None, "", line[1].replace("\\\n", " ")
    place = 0
    while place < len(text):
        character = text[place]
        if character == "\\" and quote != "'":
            place += 1
            current = (current or "") + text[place]
        elif character == quote:
            quote = ""
        elif character in "\"'" and not quote and current is None:
            quote, current = character, ""
        elif character == " " and not quote:
            if current is not None:
                words.append(current)
            current = None
        else:
            current = (current or "") + character
        place += 1
    words += [] if current is None else [current]
    assert not re.search(r"(?<!%)(?:%%)*%(?!%)", " ".join(words))
    assert not re.search(r"(?<!\$)(?:\$\$)*\$(?!\$)", " ".join(words))
    return [word.replace("%%", "%").replace("$$", "$") for word in words]


def compose_words(text: str) -> list[str]:
    service = yaml.safe_load(text)["services"]["llama-server"]
    return [str(word).replace("$$", "$") for word in service["command"]]


def swap_words(text: str) -> list[str]:
    """What llama-swap starts: comments and macros, then words as a shell splits them."""
    (model,) = yaml.safe_load(text)["models"].values()
    assert re.findall(r"\$\{[^}]*\}", model["cmd"]) == ["${PORT}"]
    assert "${" not in model["name"]
    return shlex.split(model["cmd"].replace("${PORT}", "8080"))


def modelfile(text: str) -> list[str]:
    """What an Ollama Modelfile names, line by line (`parser/parser.go`, fb30760)."""
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    assert all(re.match("(FROM|ADAPTER|PARAMETER) ", line) for line in lines)
    return [line.split(" ", 1)[1].strip() for line in lines if not line.startswith("PARAMETER")]


def check_words(found: list[str], asked: ExportRequest, *, host: str | None = None) -> None:
    assert found[found[0] == "llama-server" :] == planned(replace(asked, host=host or asked.host))


def check_ini(text: str, asked: ExportRequest) -> None:
    (values,) = [values for name, values in ini_sections(text).items() if name != "default"]
    assert values["model"] == values["mmproj"] == str(asked.configuration.model_path)


def check_kcpps(text: str, asked: ExportRequest) -> None:
    found, path = json.loads(text), str(asked.configuration.model_path)
    assert (found["model_param"], found["lora"], found["host"]) == (path, [path], asked.host)


def check_python_server(text: str, asked: ExportRequest) -> None:
    found, path = json.loads(text), str(asked.configuration.model_path)
    assert (found["models"][0]["model"], found["host"]) == (path, asked.host)


CHECKS: Mapping[str, Callable[[str, ExportRequest], None]] = {
    "systemd": lambda text, asked: check_words(systemd_words(text), asked),
    "compose": lambda text, asked: check_words(compose_words(text), asked, host="0.0.0.0"),
    "llama-swap": lambda text, asked: check_words(swap_words(text), asked),
    "models-preset": check_ini,
    "koboldcpp": check_kcpps,
    "llama-cpp-python": check_python_server,
}
"""What each program reads, by its own grammar."""


def test_a_modelfile_has_hostile_names_whole() -> None:
    for name in NAMES:
        path = str(request_of(name).configuration.model_path)
        assert modelfile(FORMATS["ollama"].render(request_of(name)).text) == [path] * 3


@pytest.mark.parametrize("format_name", CHECKS)
def test_a_hostile_name_arrives_whole(format_name: str) -> None:
    for name in NAMES:
        asked = request_of(name)
        if format_name == "models-preset" and set(";#") & {*name}:
            with pytest.raises(ExportError, match="cannot be quoted"):
                FORMATS[format_name].render(asked)
        else:
            CHECKS[format_name](FORMATS[format_name].render(asked).text, asked)


@pytest.mark.parametrize("format_name", ["systemd", "compose", "llama-swap"])
@given(configuration=CONFIGURATIONS)
@settings(max_examples=25)
def test_every_configuration_arrives_whole(format_name: str, configuration: Configuration) -> None:
    asked = ExportRequest(configuration)
    CHECKS[format_name](FORMATS[format_name].render(asked).text, asked)


@pytest.mark.parametrize("format_name", sorted(set(FORMATS) - {"lm-studio"}))  # it names none
def test_a_path_that_no_line_can_hold_is_refused(format_name: str) -> None:
    for name in REFUSED:
        with pytest.raises(ExportError, match="no export can write"):
            FORMATS[format_name].render(request_of(name))


@pytest.mark.parametrize("format_name", FORMATS)
def test_no_text_of_a_model_file_breaks_an_export(format_name: str) -> None:
    """Its architecture, for example, stands in the warnings, which are comments of one line."""
    configuration = Configuration(Path("/models/m.gguf"), 512)
    for name in (*NAMES, *REFUSED):
        # A service is named in its description too, which is refused as a path is.
        called = "m" if format_name == "systemd" and name in REFUSED else name
        asked = ExportRequest(configuration, name=called, warnings=(f"{name} is too new",))
        text = FORMATS[format_name].render(asked).text
        if format_name in ("compose", "llama-swap"):
            yaml.safe_load(text)
        if format_name == "models-preset":
            ini_sections(text)
        comments = "".join(line for line in text.split("\n") if line.startswith(("#", ";")))
        assert not UNWRITABLE.search(comments)
        assert not {*"\u202e\u2066"} & {*comments}
        assert len(FORMATS[format_name].file_name(asked)) < 150


@pytest.mark.parametrize(
    "shell",
    [
        pytest.param(shell, marks=[pytest.mark.slow] * (shell != "sh"))
        for shell in ("sh", "bash", "dash")
    ],
)
def test_a_shell_starts_the_server_with_hostile_names_and_runs_nothing_else(
    shell: str, stub: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    for name in NAMES:
        asked = request_of(name)
        script, line = (FORMATS[each].render(asked).text for each in ("shell", "llama-server"))
        assert started_by(shell, script, stub) == planned(asked)
        assert started_by(shell, line, stub) == planned(asked)[:-4]
    assert started_by(shell, script, stub, "--port", "1 2")[-2:] == ["--port", "1 2"]


PROGRAMS = (
    "-x", "", "A=b", "+/bin/sh", "@/bin/sh", ":/bin/sh", "!/bin/sh", "|/bin/sh", "./x", "a/x", "..",
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_systemd_starts_in_another_way_is_refused(program: str) -> None:
    asked = ExportRequest(Configuration(Path("/m.gguf"), 512), program=program)
    with pytest.raises(ExportError, match="full path"):
        FORMATS["systemd"].render(asked)


@pytest.mark.parametrize("program", ["-x", "-c", "", "A=b", "a+=b"])
@pytest.mark.parametrize("format_name", ["llama-server", "shell", "systemd", "llama-swap"])
def test_a_program_that_a_shell_does_not_start_is_refused(program: str, format_name: str) -> None:
    asked = ExportRequest(Configuration(Path("/m.gguf"), 512), program=program)
    with pytest.raises(ExportError, match="full path"):
        FORMATS[format_name].render(asked)


@pytest.mark.slow
def test_systemd_itself_finds_nothing_wrong(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    units = []
    for number, name in enumerate(NAMES):
        program = tmp_path / f"{number} $HOME %h" / "server"
        program.parent.mkdir()
        shutil.copy("/bin/true", program)
        unit = tmp_path / f"u{number}.service"
        asked = replace(request_of(name), program=str(program))
        unit.write_text(FORMATS["systemd"].render(asked).text, encoding="utf-8")
        units.append(str(unit))
    done = subprocess.run(
        [analyze, "--user", "verify", *units], capture_output=True, text=True, check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == 0
