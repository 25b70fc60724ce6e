"""Scripts, services and files hand llama-server exactly the arguments that were planned."""

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine.configuration import Configuration, TensorOverride
from engine.presets.programs.base import ExportError, ExportRequest
from engine.presets.programs.formats import FORMATS
from engine.presets.programs.llama_server import arguments
from engine.presets.programs.yaml_tree import parse_yaml
from tests.engine.presets.strategies import CONFIGURATIONS, PATHS

FAKE_SERVER = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done
"""
ODD_PATH = Path('/models/a model\'s "best" $HOME ${x} 100% \\o/ `id` #1.gguf')


@pytest.fixture(scope="module")
def fake_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bin") / "llama-server"
    path.write_text(FAKE_SERVER, encoding="utf-8")
    path.chmod(0o755)
    return path


def run_script(text: str, server: Path, *further: str) -> list[str]:
    done = subprocess.run(
        ["sh", "-c", text, "serve.sh", *further],
        capture_output=True,
        check=True,
        env={**os.environ, "PATH": f"{server.parent}:{os.environ['PATH']}", "HOME": "/home/x"},
    )
    return done.stdout.decode().split("\0")[:-1]


def planned(configuration: Configuration) -> list[str]:
    return [*arguments(configuration), "--host", "127.0.0.1", "--port", "8080"]


@given(configuration=CONFIGURATIONS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_script_starts_the_server_with_the_planned_words(
    fake_server: Path, configuration: Configuration
) -> None:
    text = FORMATS["shell"].render(ExportRequest(configuration)).text
    assert run_script(text, fake_server) == planned(configuration)


def test_what_the_script_is_called_with_comes_last_and_wins(fake_server: Path) -> None:
    text = FORMATS["shell"].render(ExportRequest(Configuration(ODD_PATH, 512))).text
    assert run_script(text, fake_server, "--port", "1 2")[-2:] == ["--port", "1 2"]


def test_the_script_is_valid_for_bash_too(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    request = ExportRequest(Configuration(ODD_PATH, 512), warnings=("two\nlines",))
    script.write_text(FORMATS["shell"].render(request).text, encoding="utf-8")
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "# two lines\n" in script.read_text(encoding="utf-8")


@given(configuration=CONFIGURATIONS)
@settings(max_examples=40)
def test_a_unit_starts_the_planned_words_as_systemd_splits_them(
    configuration: Configuration,
) -> None:
    text = FORMATS["systemd"].render(ExportRequest(configuration)).text
    assert systemd_words(text) == ["llama-server", *planned(configuration)]


def systemd_words(unit: str) -> list[str]:
    """Split ExecStart as systemd.service(5) says: quotes, C escapes, then % and $ doubled."""
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


@given(configuration=CONFIGURATIONS)
@settings(max_examples=40)
def test_a_compose_file_has_the_planned_words_and_mounts_their_folders(
    configuration: Configuration,
) -> None:
    tree = parse_yaml(FORMATS["compose"].render(ExportRequest(configuration)).text)
    assert isinstance(tree, dict)
    services = tree["services"]
    assert isinstance(services, dict)
    service = services["llama-server"]
    assert isinstance(service, dict)
    words, volumes = service["command"], service["volumes"]
    assert isinstance(words, list)
    assert isinstance(volumes, list)
    expected = [*arguments(configuration), "--host", "0.0.0.0", "--port", "8080"]
    assert [str(word).replace("$$", "$") for word in words] == expected
    mounted = {str(each["source"]) for each in volumes if isinstance(each, dict)}
    assert str(configuration.model_path.parent).replace("$", "$$") in mounted


def test_a_container_without_a_gpu_asks_for_none() -> None:
    configuration = Configuration(Path("/models/m.gguf"), 512)
    with_gpu = FORMATS["compose"].render(ExportRequest(configuration)).text
    without = FORMATS["compose"].render(ExportRequest(configuration, uses_gpu=False)).text
    assert "server-cuda" in with_gpu
    assert "nvidia" in with_gpu
    assert "nvidia" not in without
    assert "llama.cpp:server\n" in without


def test_links_to_other_folders_are_mounted_too(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "blobs" / "abc").touch()
    link = tmp_path / "snapshots" / "m.gguf"
    link.symlink_to(tmp_path / "blobs" / "abc")
    text = FORMATS["compose"].render(ExportRequest(Configuration(link, 512))).text
    assert f'source: "{tmp_path / "blobs"}"' in text


@given(path=PATHS)
@settings(max_examples=200)
def test_a_models_preset_holds_a_path_or_refuses_it(path: Path) -> None:
    request = ExportRequest(Configuration(path, 512))
    if set(";#") & set(str(path)):
        with pytest.raises(ExportError, match="no quotes"):
            FORMATS["models-preset"].render(request)
        return
    lines = FORMATS["models-preset"].render(request).text.splitlines()
    assert f"model = {path}" in lines


@given(path=PATHS)
@example(path=Path("/models/a ${x} ${PORT} ${env.HOME}'${y}.gguf"))
@settings(max_examples=100)
def test_llama_swap_finds_no_macro_in_a_path(path: Path) -> None:
    text = FORMATS["llama-swap"].render(ExportRequest(Configuration(path, 512))).text
    assert re.findall(r"\$\{[^}]*\}", text.partition("cmd: |")[2]) == ["${PORT}"]


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"lm-studio"}))  # it names no model
@pytest.mark.parametrize("bad", ["a\nb.gguf", "a\tb.gguf", "a\x07b.gguf", "a\udcffb.gguf"])
def test_control_characters_are_refused_by_every_format(name: str, bad: str) -> None:
    request = ExportRequest(Configuration(Path("/models") / bad, 512))
    with pytest.raises(ExportError, match="no export can write"):
        FORMATS[name].render(request)


@pytest.mark.parametrize("pattern", ["a,b", "a=b"])
def test_a_pattern_that_llama_server_would_cut_apart_is_refused(pattern: str) -> None:
    odd = replace(Configuration(Path("/m.gguf"), 512), tensor_overrides=(TensorOverride(pattern),))
    with pytest.raises(ExportError, match="cuts its overrides apart"):
        arguments(odd)


@pytest.mark.parametrize("name", [each.name for each in FORMATS.values() if each.has_comments])
@given(warning=st.text(max_size=30))
@settings(max_examples=20)
def test_warnings_are_comments_of_one_line(name: str, warning: str) -> None:
    request = ExportRequest(Configuration(Path("/models/m.gguf"), 512), warnings=(warning,))
    plain = FORMATS[name].render(replace(request, warnings=())).text
    warned = FORMATS[name].render(request).text
    assert len(warned.split("\n")) == len(plain.split("\n")) + 1


def test_a_router_that_puts_experts_first_is_remarked() -> None:
    configuration = replace(
        Configuration(Path("/m.gguf"), 512),
        n_cpu_moe=3,
        tensor_overrides=(TensorOverride("ffn_up_exps", "GPU 0"),),
    )
    remarks = FORMATS["models-preset"].render(ExportRequest(configuration)).remarks
    assert any("before the tensor overrides" in remark for remark in remarks)
