"""`kvchat import`: other programs' settings become presets."""

import io
import json
import os
import sys
import tomllib
from pathlib import Path

import pytest

from app import paths
from app.cli.main import run
from engine.presets.formats import FORMATS
from tests.app.cli.conftest import json_of, kvchat, refusal, text_of


def test_a_command_becomes_a_preset_and_what_stays_after_is_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["llama-server", "-m", "a b.gguf", "-c", "4096", "-ctk", "q8_0", "--jinja"]
    assert run(["import", "--", *words]) == 0
    shown = capsys.readouterr()
    preset = tomllib.loads(shown.out)
    assert (preset["name"], preset["model"], preset["n_ctx"]) == ("a b", "a b.gguf", 4096)
    assert "# left out: --jinja" in shown.err


def test_a_saved_preset_can_be_exported_again(
    starter_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "serve.sh"
    assert run(["export", str(starter_path), "--format", "shell", "--output", str(script)]) == 0
    assert run(["import", str(script), "--name", "back", "--save"]) == 0
    assert (paths.presets_dir() / "back.toml").is_file()
    capsys.readouterr()
    assert (
        run(["export", "--preset", "back", "--format", "shell", "--name", starter_path.stem]) == 0
    )
    # The server has look-up for suffixes: that was reported once, and came back as look-up.
    left = "# the predictor is suffix: llama-server uses its n-gram lookup instead\n"
    assert script.read_text().count(left) == 1
    assert capsys.readouterr().out == script.read_text().replace(left, "")
    assert run(["import", str(script), "--name", "back", "--save"]) == 1
    assert run(["import", str(script), "--name", "back", "--save", "--force"]) == 0


def test_a_built_in_preset_is_not_replaced() -> None:
    words = ["--name", "balanced", "--save", "--force", "--", "llama-server", "-m", "a.gguf"]
    assert "'balanced' is built in" in kvchat("import", *words).stderr
    assert not paths.presets_dir().exists()


def test_a_command_of_one_word_is_no_file() -> None:
    assert "command line contains no setting" in refusal("import", "--", "llama-server")


@pytest.mark.parametrize(("given", "printed"), [([], "is given"), (["-c", "0"], "size is 0")])
def test_a_context_left_to_the_model_is_reported_as_it_was_given(
    given: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", "--", "llama-server", "-m", "a.gguf", *given]) == 0
    shown = capsys.readouterr()
    assert f"{printed}: llama-server then uses" in shown.err
    assert tomllib.loads(shown.out)["n_ctx"] == "max"


def test_standard_input_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = b"[one]\nmodel = a.gguf\nc = 512\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert run(["import", "-", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["preset"]["n_ctx"] == 512
    assert found["source"] == "section [one] of a models preset"


def test_what_a_command_prints_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"[one]\nmodel = a.gguf\nc = 512\n")
    os.close(write_end)
    assert run(["import", f"/dev/fd/{read_end}", "--json"]) == 0
    os.close(read_end)
    assert json.loads(capsys.readouterr().out)["preset"]["n_ctx"] == 512


def test_lm_studios_shares_become_layers_of_the_model_that_is_named(
    starter_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "defaults.json"
    share = {"key": "llm.load.llama.acceleration.offloadRatio", "value": 0.5}
    file.write_text(json.dumps({"load": {"fields": [share]}}))
    assert run(["import", str(file), "--model", str(starter_path)]) == 0
    preset = tomllib.loads(capsys.readouterr().out)
    assert (preset["model"], preset["n_gpu_layers"]) == (str(starter_path), 15)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"x" * (2**20 + 1), b"no command"])
def test_what_cannot_be_imported_is_refused_with_the_reason(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert "cannot be imported" in refusal("import", str(file))


def test_a_file_that_is_not_there_reports_where_commands_go() -> None:
    assert "after `--`" in refusal("import", "nowhere.sh")


def test_every_format_is_listed() -> None:
    listed = text_of("export", "--format", "list")
    assert all(name in listed for name in FORMATS)


def test_an_export_is_written_beside_what_is_there_only_with_force(
    starter_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "compose.yaml"
    ask = ["export", str(starter_path), "--format", "compose", "--output", str(path)]
    assert run(ask) == 0
    first = path.read_text()
    assert capsys.readouterr().out == f"{path}\n"
    path.write_text("mine")
    assert run(ask) == 1
    assert path.read_text() == "mine"
    assert run([*ask, "--force"]) == 0
    assert path.read_text() == first


def test_install_puts_lm_studios_defaults_in_their_place(
    starter_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / ".lmstudio" / "models" / "me" / "repo" / "m.gguf"
    model.parent.mkdir(parents=True)
    model.symlink_to(starter_path)
    assert run(["export", str(model), "--format", "lm-studio", "--install"]) == 0
    place = Path(capsys.readouterr().out.strip())
    assert place.is_relative_to(tmp_path / ".lmstudio" / ".internal")
    assert json.loads(place.read_text())["load"]["fields"]
    assert run(["export", str(model), "--format", "lm-studio", "--install"]) == 0
    assert "# backup of" in capsys.readouterr().err


def imported(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """What `kvchat import --json` makes of a file; a value is there or it is named."""
    file = tmp_path / "settings"
    file.write_text(text)
    capsys.readouterr()
    return json_of("import", str(file), "--name", "x")


SERVED = {"model": "/m/a.gguf", "n_ctx": 32768, "type_k": "q8_0", "type_v": "q8_0"}
FLAGS = "-c 32768 -np 1", "--cache-type-k q8_0 --cache-type-v q8_0"
SCRIPTS = {
    "cmd": f"llama-server.exe -m /m/a.gguf ^\r\n {FLAGS[0]} ^\r\n {FLAGS[1]}\r\n",
    "cmd with variables": "@echo off\r\nREM llama-server.exe -m old.gguf -c 512\r\n"
    f"set MODEL=/m/a.gguf\r\nllama-server.exe -m %MODEL% {FLAGS[0]} ^\r\n {FLAGS[1]}\r\n",
    "powershell": '& "C:\\llama\\llama-server.exe" `\n  -m "/m/a.gguf" `\n'
    f" {FLAGS[0]} `\n {FLAGS[1]}\n",
    "array": f'args=(-m "/m/a.gguf" {FLAGS[0]} # a note\n  {FLAGS[1]})\n'
    'exec "$BIN/llama-server" "${args[@]}"\n',
    "array in two parts": f"a=(-m /m/a.gguf)\nif true; then a+=({FLAGS[0]}\n {FLAGS[1]}); fi\n"
    "llama-server ${a[@]}\n",
    "powershell with variables": '$model = "/m/a.gguf"\n$more = @("-c", "32768",\n  "-np", "1")\n'
    f"& llama-server.exe -m $model @more {FLAGS[1]}\n",
    "function": f'serve() {{\n  exec llama-server {FLAGS[0]} "$@"\n}}\n'
    f"serve -m /m/a.gguf {FLAGS[1]}\n",
    "words of a variable": f'ARGS="{FLAGS[0]} {FLAGS[1]}"\nllama-server -m /m/a.gguf $ARGS\n',
    "defaults": 'llama-server -m "${MODEL:-/m/a.gguf}" -c ${CTX:=32768} -np ${N-1} '
    '-ctk "${KV:-q8_0}" -ctv ${KV_V:-${KV:-q8_0}}\n',
    "a default that is set": "CTX=32768; KV=q8_0\nllama-server -m /m/a.gguf -c ${CTX:-16} -np 1 "
    "-ctk $KV -ctv ${KV:+q8_0}\n",
    "output of a command": f"llama-server -t $(nproc) -m /m/a.gguf {FLAGS[0]} {FLAGS[1]}\n",
    "unit": "[Service]\nEnvironment=MODEL=/m/a.gguf 'ARGS=-c 32768 -np 1'\n"
    f"ExecStart=/usr/bin/llama-server -m ${{MODEL}} $ARGS {FLAGS[1]}\n",
    "compose": "services:\n  llm:\n    image: ghcr.io/ggml-org/llama.cpp:server\n    command:\n"
    '      - "-m"\n      - "${MODEL:-/m/a.gguf}"\n      - "-c"\n      - "${CTX:-32768}"\n'
    "    environment:\n      LLAMA_ARG_N_PARALLEL: ${N:-1}\n"
    "      LLAMA_ARG_CACHE_TYPE_K: q8_0\n      LLAMA_ARG_CACHE_TYPE_V: ${KV-q8_0}\n",
    "llama-swap": "models:\n  a:\n    cmd: |\n      llama-server -m /m/a.gguf   # the model\n"
    f"      {FLAGS[0]}  # context\n      # not this\n      {FLAGS[1]}\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_line_of_a_script_arrives(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = imported(SCRIPTS[name], tmp_path, capsys)
    preset = found["preset"]
    assert {key: preset[key] for key in SERVED} == SERVED
    assert not {"n_slots", "kv_unified"} & preset.keys()


def test_paths_of_windows_keep_their_backslashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        'C:\\llama\\llama-server.exe -m "d:\\models\\a.gguf" ^\r\n'
        " --mmproj d:\\m\\b.gguf -c 512\r\n"
    )
    preset = imported(text, tmp_path, capsys)["preset"]
    assert (preset["model"], preset["mmproj"]) == ("d:\\models\\a.gguf", "d:\\m\\b.gguf")


@pytest.mark.parametrize(
    ("switch", "expected"),
    [
        ("LLAMA_ARG_FLASH_ATTN=${FA:-off}", {"flash_attention": "off"}),
        ("LLAMA_ARG_KV_UNIFIED=${KVU:-0}", {}),
        ("LLAMA_ARG_KV_UNIFIED=${KVU:-1}", {"kv_unified": True}),
    ],
)
def test_the_default_of_a_switch_counts(
    switch: str, expected: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{switch}\nLLAMA_ARG_MODEL=/m/a.gguf\nLLAMA_ARG_CTX_SIZE=512\nLLAMA_ARG_N_PARALLEL=1\n"
    preset = imported(text, tmp_path, capsys)["preset"]
    names = ("flash_attention", "kv_unified")
    assert {name: preset[name] for name in names if name in preset} == expected


@pytest.mark.parametrize(
    "text",
    [
        'llama-server -c 512 -m "$UNKNOWN" -fa $UNKNOWN --n-gpu-layers ${UNKNOWN}',
        'X="$UNKNOWN"\nllama-server -c 512 -m "$X" -fa $X --n-gpu-layers "$X"',
        'llama-server -c 512 -m "$1" -fa $2 --n-gpu-layers ${UNKNOWN}',
        "llama-server -c 512 --model=$UNKNOWN -fa ${UNKNOWN%.x} --n-gpu-layers $(nproc)",
        "[Service]\nExecStart=llama-server -c 512 -m ${UNKNOWN} -fa $UNKNOWN -ngl ${UNKNOWN}",
    ],
)
def test_a_value_that_the_text_does_not_have_is_named(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = imported(f"{text}\n", tmp_path, capsys)
    preset, left_out = found["preset"], found["left_out"]
    assert not {"model", "flash_attention", "n_gpu_layers"} & preset.keys()
    assert len(left_out) == 3


def test_flags_add_up_as_in_llama_cpp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "llama-server -m a.gguf -ot 'blk\\.0\\.=CUDA0' -c 512 -c 1024 -ot 'exps=CPU'\n"
    preset = imported(text, tmp_path, capsys)["preset"]
    assert preset["n_ctx"] == 1024
    assert preset["tensor_overrides"] == [
        {"pattern": "blk\\.0\\.", "device": "GPU 0"}, {"pattern": "exps"},
    ]  # fmt: skip


def test_a_known_flag_without_a_place_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {
        "--spec-draft-type-k": "q8_0", "--spec-draft-type-v": "q8_0", "--spec-draft-p-min": "0.6",
        "--spec-draft-n-min": "2", "--spec-draft-ngl": "0",
    }  # fmt: skip
    given = " ".join(f"{flag} {value}" for flag, value in flags.items())
    text = f"llama-server -m a.gguf -c 512 --spec-type draft-mtp --spec-draft-n-max 4 {given}\n"
    found = imported(text, tmp_path, capsys)
    preset, left_out = found["preset"], found["left_out"]
    assert preset["n_mtp_draft"] == 4
    assert {each.split()[0].replace("-ngld", "--spec-draft-ngl") for each in left_out} == {*flags}
