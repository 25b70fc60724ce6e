"""Commands at a server: what it is, one answer."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app import paths
from app.cli.main import run
from app.opening import ModelRequest
from app.startup import prepare
from app.store.chats import ChatStore
from app.store.records import Chat
from engine.servers import KEY_VARIABLE
from tests.app.cli.conftest import kvchat, refusal, text_of
from tests.support.chats import add_chat, add_message
from tests.support.hostile_language_server import Kind, LanguageServer, serving
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("kind", "metrics", "words"),
    [
        ("OpenAI", "", ("OpenAI at", "not report its context", "plain chat messages",
                        "reports no counters", "not report drafts")),
        ("vLLM", "", ("vLLM 0.32.0 at", "512 tokens", "start the server without --disable-log")),
        ("SGLang", "", ("SGLang 0.5.23 at", "start the server with --enable-metrics")),
        ("Ollama", "", ("Ollama 0.12.0 at", "reports no counters", "`ollama ps`")),
        ("llama-server", "", (
            "llama-server b1-test at", "tiny (Q4_1)",
            "1,024 tokens (training context 2,048), 2 replies at once", "prompts are identical",
            "prompt, reused, drafted and accepted tokens", "start the server with --metrics",
            "slots: 0 of 1 busy",
        )),
        ("llama-server", "llamacpp:requests_processing 1\n", ("counters at /metrics", "1 reply")),
    ],
)  # fmt: skip
def test_doctor_reports_what_a_server_reports_and_what_not(
    kind: Kind, metrics: str, words: tuple[str, ...]
) -> None:
    with serving(kind) as server:
        server.metrics = metrics
        shown = " ".join(text_of("doctor", "--server", server.url).split())
        server.misdeed = "gives up"
        failed = kvchat("doctor", "--server", server.url)
    for each in (*words, "trial reply: 7 tokens"):
        assert each in shown
    assert failed.returncode == 1
    assert "out of memory" in failed.stdout


def test_run_prints_the_reply_of_a_server(capfd: pytest.CaptureFixture[str]) -> None:
    with serving("vLLM") as server:
        assert run(["run", "--server", server.url, "Hello"]) == 0
    assert capfd.readouterr().out == "The cat sat on the mat.\n"


def test_a_busy_server_is_waited_for_with_a_word_on_standard_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with serving("vLLM") as server:
        server.misdeed = "busy"
        answers_later = threading.Thread(target=answer_from_the_second_question_on, args=(server,))
        answers_later.start()
        assert run(["run", "--server", server.url, "Hello"]) == 0
        answers_later.join()
    shown = capfd.readouterr()
    assert shown.out == "The cat sat on the mat.\n"
    assert "Loading model; waited " in shown.err


def answer_from_the_second_question_on(server: LanguageServer) -> None:
    wait_until(lambda: len(server.asked) > 1)
    server.misdeed = "none"


def keys_sent(server: LanguageServer) -> set[str | None]:
    return {headers.get("authorization") for _, headers, _ in server.asked}


@pytest.mark.parametrize("address", ["{url}", "{url}#tiny", "{url}/v1#tiny"])
def test_no_file_of_chats_leads_to_a_server(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-very-secret-123")
    with ChatStore(paths.database_path()) as store:
        mine = add_chat(store, "mine")
    with serving() as server:
        file = tmp_path / "shared.jsonl"
        head = {
            "format": "kvchat-chats", "version": 1, "n_messages": 0, "title": "A recipe",
            "title_locked": False, "created_at": 2e11, "updated_at": 2e11, "system_prompt": "",
            "sampling": {}, "model_path": address.format(url=server.url),
        }  # fmt: skip
        file.write_text(json.dumps(head))
        assert run(["chats", "import", str(file)]) == 0
        with ChatStore(paths.database_path()) as store:
            store.update_chat(mine.id, head_id=None)
            add_message(store, mine.id, None, "user", "q")
            assert store.list_chats()[0].id == mine.id, "a time in the future is not the last one"
            store.delete_chat(mine.id)
        parts = prepare(ModelRequest())
        assert parts.configuration is None
        assert parts.services.servers() == []
        parts.close()
        run(["run", "Hello"])
        assert server.asked == []


def test_the_key_of_the_environment_goes_only_to_a_server_that_was_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    key = "sk-very-secret-123"
    monkeypatch.setenv(KEY_VARIABLE, key)
    with serving() as server:
        with ChatStore(paths.database_path()) as store:
            add_chat(store, Chat(title="asked there", model_path=f"{server.url}#tiny"))
        assert run(["run", "Hello"]) == 0
        assert keys_sent(server) == {None}
        server.key = key
        assert run(["run", "Hello"]) == 1
        assert "--server" in capfd.readouterr().err
        assert keys_sent(server) == {None}
        assert run(["run", "--server", server.url, "Hello"]) == 0
        preset = paths.presets_dir() / "cellar.toml"
        preset.parent.mkdir(parents=True)
        preset.write_text(f'name = "cellar"\nserver = "{server.url}"\nmodel = "tiny"\n')
        server.asked.clear()
        assert run(["run", "Hello"]) == 0
        assert keys_sent(server) == {f"Bearer {key}"}


def test_what_a_server_was_started_with_is_refused() -> None:
    assert "leave out --ctx" in refusal(
        "run", "--server", "http://127.0.0.1:9", "--ctx", "4k", "Hello"
    )
    assert run(["run", "--server", "http://me:pass@host", "Hello"]) == 2


@pytest.mark.parametrize(
    "typed",
    [["--gpu-layers", "0"], ["--no-bonus-token"], ["--mmproj", "off"],
     ["--set", "kv_trace=trace.jsonl"], ["--set", "decode_plan=auto"]],
)  # fmt: skip
def test_what_would_do_nothing_at_a_server_is_refused_by_its_own_name(
    typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "--server", "http://127.0.0.1:9", *typed, "Hello"])
    assert typed[0] in capsys.readouterr().err


def test_a_server_that_listens_for_all_is_started_with_a_warning(
    starter_path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    command = ["serve", "--model", str(starter_path), "--llama-server", str(program), "--no-chat"]
    assert run([*command, "--host", "0.0.0.0", "--port", "4999"]) == 1
    printed = " ".join(capsys.readouterr().err.split())
    assert "listening at 0.0.0.0:4999" in printed
    assert "without a key" in printed
    assert run([*command, "--host", "[::1]", "--port", "4999"]) == 1
    printed = " ".join(capsys.readouterr().err.split())
    assert "listening at [::1]:4999" in printed
    assert "without a key" not in printed


@pytest.fixture
def served_preset(tmp_path: Path) -> Path:
    path = tmp_path / "cellar.toml"
    path.write_text('name = "cellar"\nserver = "http://127.0.0.1:9"\nmodel = "tiny"\n')
    return path


@pytest.mark.parametrize(
    "command", [["bench"], ["compare", "any", "Hello"], ["tune"], ["cache-quality", "any"]]
)
def test_what_needs_the_model_here_reports_it_for_a_server(
    command: list[str], served_preset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--preset", str(served_preset)]) == 1
    printed = " ".join(capsys.readouterr().err.split())
    assert "needs a local model" in printed


def test_a_plan_of_a_server_preset_asks_for_a_file(
    served_preset: Path, starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", "--preset", str(served_preset)]) == 1
    assert "specify a model file" in " ".join(capsys.readouterr().err.split())
    assert run(["export", str(starter_path), "--preset", str(served_preset)]) == 0


def test_no_key_is_in_anything_that_commands_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key, wrong = "sk-very-secret-123", "sk-almost-456"
    with serving("llama-server") as server, serving() as thief:
        server.key = key
        preset = tmp_path / "cellar.toml"
        preset.write_text(f'name = "cellar"\nserver = "{server.url}"\nmodel = "tiny"\n')
        commands = (
            ["doctor", "--server", server.url],
            ["run", "--server", server.url, "--json", "Hello"],
            ["run", "--preset", str(preset), "Hello"],
        )  # fmt: skip
        for sent in (key, wrong):
            monkeypatch.setenv(KEY_VARIABLE, sent)
            codes = [run(command) for command in commands]
            assert codes == [0] * 3 if sent == key else all(codes)
        monkeypatch.setenv(KEY_VARIABLE, key)
        server.elsewhere, server.misdeed = thief.url, "elsewhere"
        assert all(run(command) for command in commands)
        server.misdeed = "echoes key"
        assert all(run(command) for command in commands)
        assert thief.asked == []
    shown = capfd.readouterr()
    assert "[key]" in shown.err + shown.out
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    saved = shown.out.encode() + shown.err.encode()
    saved += b"".join(path.read_bytes() for path in written)
    assert written
    assert key.encode() not in saved
    assert wrong.encode() not in saved


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(
    ("number", "exit_code", "more"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM, ()),
        (signal.SIGHUP, 128 + signal.SIGHUP, ("--keep",)),
        (signal.SIGINT, 0, ()),
    ],
)
def test_a_server_reports_its_memory_and_ends_with_kvchat_unless_it_is_to_stay(
    number: signal.Signals,
    exit_code: int,
    more: tuple[str, ...],
    starter_path: Path,
    tmp_path: Path,
) -> None:
    program, pid_path = tmp_path / "llama-server", tmp_path / "pid"
    program.write_text(
        f"""#!{sys.executable}
import os, pathlib, sys, time
sys.path.insert(0, {str(Path.cwd())!r})
from tests.support.hostile_language_server import serving
print("load_tensors: CPU model buffer size = 90.00 MiB")
print("llama_kv_cache: CPU KV buffer size = 10.00 MiB", flush=True)
with serving("llama-server", port=int(sys.argv[sys.argv.index("--port") + 1])):
    pathlib.Path({str(pid_path)!r}).write_text(str(os.getpid()))
    time.sleep(60)
""",
        encoding="utf-8",
    )
    program.chmod(0o755)
    run_it = "import sys; from app.cli.main import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", run_it, "serve", "--model", str(starter_path)]
    command += ["--llama-server", str(program), "--no-chat", *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as kvchat:  # type: ignore[call-overload]
        assert f"serves {starter_path.stem}" in kvchat.stdout.readline()
        assert re.match(
            r"memory: planned .* MiB, allocated 100 MiB \(plan [+-]", kvchat.stdout.readline()
        )
        assert re.match(r"\d\d:\d\d:\d\d  slots: 0 of 1 busy$", kvchat.stdout.readline())
        kvchat.send_signal(number)
        assert kvchat.wait(30) == exit_code
        pid = int(pid_path.read_text())
        printed = " ".join(kvchat.stderr.read().split())
    assert "Ctrl+C stops the server" in printed
    assert (f"`kill {pid}`" in printed) == bool(more)
    if more:
        os.kill(pid, signal.SIGKILL)
    else:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_serve_takes_a_model_first() -> None:
    for options in (["--preset", "balanced"], ["--ctx", "4k"]):
        assert "no model" in refusal("serve", "nosuch", *options, "--llama-server", sys.executable)
    assert run(["serve", "balanced", "--preset", "balanced", "--model", "a"]) == 2
