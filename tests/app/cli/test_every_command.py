"""No content of files, servers, logs and models controls the terminal."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import click
import pytest

import app.application
import engine.memory.hardware
import engine.process.client
from app import paths
from app.cli import main
from app.store.chats import ChatStore
from app.store.records import Chat, StoredMessage
from engine.cache.namespace import Namespace
from engine.cache.store import SegmentStore
from engine.configuration import Configuration, SamplingSettings
from engine.errors import InstallError, ServerError
from engine.events import Failed, SpeculationChanged
from engine.experiment.records import PromptRecord, write_results
from engine.memory.hardware import Device
from engine.requests import GenerationRequest
from tests.app.cli.terminals import HOSTILE, harmful, on_terminal
from tests.engine.cache.making import NAMESPACE, payload_of, state_of
from tests.engine.experiment.made_results import record, results
from tests.support.chats import add_chat, add_message, add_stored
from tests.support.drafting_models import TOKENS, drafting_model
from tests.support.fakes_client import Script, ScriptedClient, loaded
from tests.support.gguf_files import header, llama_values, write
from tests.support.gguf_server import running

QUOTED = json.dumps(HOSTILE)
"""The hostile text as JSON and TOML write it."""
LINES = f"{HOSTILE}\nsecond\tline\r\n{HOSTILE}"
STATE = state_of(range(300), owners=("chat:1",))

CASES: dict[str, Sequence[str]] = {
    "chat": ("MODEL", "MODEL --preset PRESET", "MODEL --theme HOSTILE", "BROKEN", "STRANGE"),
    "run": (
        "x --model MODEL", "x --model MODEL --json", "x --model MODEL --preset PRESET",
        "x --model MODEL --verbose",
        "x --model FAILS", "x --model BROKEN", "x --model STRANGE", "x --model PART",
        "x --model MODEL --preset WRONG",
    ),
    "batch": (
        "TOML --out HOSTILE --model MODEL", "HOSTILE --out HOSTILE --model MODEL",
        "TOML --out HOSTILE --model FAILS",
    ),
    "replay": ("TOML", "HOSTILE", "TOML --model MODEL"),
    "compare": (
        "MODEL x --second lookup --text", "MODEL x --second lookup --json",
        "MODEL x --second custom:HOSTILE", "FAILS x",
    ),
    "plan": (
        "MODEL", "MODEL --json", "MODEL --device 1GiB", "MODEL --preset PRESET", "STRANGE",
        "BROKEN", "MODEL --preset WRONG", "PART", "catalogue-HOSTILE", "qwen3-8b:HOSTILE",
        "NAMED",
        "MODEL --draft DRAFT", "SERVER/status.gguf", "SERVER/moved.gguf", "SERVER/body.gguf",
        "SERVER/line.gguf",
    ),
    "fit": (
        "MODEL", "MODEL --device 8GiB", "MODEL --json", "STRANGE", "NAMED --device 8GiB", "PART",
        "MODEL --draft DRAFT --device 8GiB", "STRANGE --format systemd",
        "MODEL --min-ctx 100000000", "SERVER/status.gguf",
    ),
    "bench": (
        "--show RESULTS", "--show TOML", "--show RESULTS --html HOSTILE", "MODEL --prompts 1",
        "MODEL --prompt-set TOML", "FAILS --prompts 1",
    ),
    "tune": ("MODEL", "MODEL --json", "FAILS", "BROKEN", "PART", "MODEL --preset WRONG"),
    "cache-quality": (
        "BROKEN", "PART", "--show RESULTS", "--show TOML", "FAILS --text HOSTILE",
        "FAILS --json TOML", "MODEL --preset WRONG", "--server SERVER/status.gguf",
        "--server SERVER/body.gguf",
    ),
    "export": (
        "MODEL", "MODEL --format shell", "STRANGE", "STRANGE --format compose",
        "STRANGE --format shell", "STRANGE --format ollama", "STRANGE --format llama-swap",
        "STRANGE --json", "STRANGE -o HOSTILE", "STRANGE --name HOSTILE --format compose",
        "STRANGE --format systemd --llama-server HOSTILE", "NAMED --preset PRESET --format shell",
        "NAMED --preset WRONG", "NAMED --format lm-studio", "SERVER/status.gguf",
    ),
    "import": (
        "FOLDER/serve.sh", "FOLDER/serve.sh --json", "FOLDER/serve.sh --save --name x",
        "FOLDER/swap.yaml", "FOLDER/models.ini", "FOLDER/Modelfile", "FOLDER/lm.json",
        "FOLDER/kobold.kcpps", "FOLDER/server.env", "TOML",
        "-- llama-server -m MODEL --odd HOSTILE",
    ),
    "pairs": (
        "MODEL", "MODEL --json", "MODEL --on gpu", "STRANGE", "BROKEN", "MODEL --folder FOLDER",
    ),
    "chats": ("",),
    "chats list": ("", "--json", "--archived"),
    "chats show": ("1", "1 --stats", "HOSTILE"),
    "chats search": ("second", "second --json", "HOSTILE"),
    "chats rename": ("1 HOSTILE",),
    "chats archive": ("1", "HOSTILE"),
    "chats unarchive": ("1",),
    "chats delete": ("1 --yes", "1"),
    "chats export": ("1", "1 --format jsonl", "1 -o HOSTILE", "--all --branches"),
    "chats fork": ("1", "1 --at 1", "HOSTILE"),
    "chats import": ("FOLDER/chats.jsonl", "TOML", "MODEL"),
    "models": ("", "--json"),
    "models catalogue": ("HOSTILE", "qwen --json"),
    "models cards": ("HOSTILE", "4090 --json"),
    "models install-starter": ("",),
    "models list": ("", "--json"),
    "models get": ("STRANGE", "hf:HOSTILE", "hf:a/HOSTILE"),
    "models rm": ("STRANGE", "STRANGE --yes", "PART"),
    "models where": ("MODEL", "STRANGE", "PART"),
    "models favourite": ("STRANGE", "STRANGE --off", "BROKEN"),
    "doctor": ("", "MODEL", "MODEL --json", "FAILS"),
    "cache": ("",),
    "cache list": ("", "--json"),
    "cache verify": ("", "--json"),
    "cache prune": ("--older 1d",),
    "cache clear": ("--yes",),
    "cache pin": ("KEY",),
    "cache unpin": ("KEY",),
    "cache drop": ("KEY",),
    "settings": ("", "--json", "prompts.HOSTILE HOSTILE", "chat.system_prompt HOSTILE"),
    "completion": ("bash",),
    "serve": ("PRESET --model MODEL", "PRESET --model NAMED --no-chat", "WRONG"),
    "web": ("MODEL", "MODEL --theme HOSTILE"),
    "where": ("", "--json"),
}  # fmt: skip
"""What each command is called with, beside every option and argument with a hostile value."""


class HostileClient(ScriptedClient):
    """An engine that replies, notes and fails with hostile texts."""

    def __init__(self, **_: object) -> None:
        super().__init__(Script(replies=(LINES,)))

    def load(self, configuration: Configuration) -> None:
        if configuration.model_path.name.startswith("fails"):
            return self.emit(Failed(HOSTILE, LINES, fatal=True))
        self._is_alive = True
        return self.emit(replace(loaded(configuration), notes=(HOSTILE,), model_name=HOSTILE))

    def generate(self, request: GenerationRequest, reply_id: int = 0) -> None:
        self.emit(SpeculationChanged(HOSTILE, HOSTILE, note=HOSTILE))
        super().generate(request, reply_id)


def no_server(named: str | None) -> Path:
    raise ServerError(f"there is no {named or HOSTILE} to start")


def hostile_install(_: Path, report: Callable[[str], None]) -> None:
    report(f"downloaded {HOSTILE}")
    report(HOSTILE)
    raise InstallError(HOSTILE)


class HostileHandler(BaseHTTPRequestHandler):
    """Answers with hostile status lines, addresses and bodies."""

    def log_message(self, *_: object) -> None:  # type: ignore[override]  silent
        pass

    def do_GET(self) -> None:
        text = HOSTILE.encode("latin-1", "replace").replace(b"\r", b"")
        body = HOSTILE.encode()
        status, message = {
            "/status.gguf": (b"500 " + text, b"X-Error-Code: " + text),
            "/moved.gguf": (b"302 " + text, b"Location: " + text + b"://" + text),
            "/body.gguf": (b"206 " + text, b"Content-Range: bytes 0-%d/9999" % (len(body) - 1)),
        }.get(self.path, (text, text))
        length = b"Content-Length: %d" % len(body)
        lines = (b"HTTP/1.1 " + status, message, length, b"ETag: " + text, b"", body)
        self.wfile.write(b"\r\n".join(lines))


def models_in(folder: Path) -> dict[str, Path]:
    """Models with hostile names, of the file or inside it."""
    clean, odd = folder.parent / "clean", (*TOKENS[:77], HOSTILE, *TOKENS[78:])
    clean.mkdir()
    found = {
        "MODEL": drafting_model(folder / f"{HOSTILE}.gguf", 40, chat_template=HOSTILE),
        "DRAFT": drafting_model(folder / f"draft {HOSTILE}.gguf", 1),
        "ODD": drafting_model(folder / f"odd {HOSTILE}.gguf", 1, odd),
        "FAILS": drafting_model(folder / f"fails {HOSTILE}.gguf", 4),
        "BROKEN": folder / f"broken {HOSTILE}.gguf",
        "PART": folder / f"part {HOSTILE}-00001-of-00002.gguf",
        "STRANGE": clean / "strange.gguf",
        "NAMED": clean / "named.gguf",
    }  # fmt: skip
    found["BROKEN"].write_bytes(b"GGUF" + b"\xff" * 100)
    write(found["PART"], header(llama_values(**{"split.count": 2})))
    strange = {key.replace("llama", HOSTILE): value for key, value in llama_values().items()}
    named = {"general.name": HOSTILE, "general.file_type": 7, "tokenizer.ggml.model": HOSTILE}
    tensor = [(f"{HOSTILE}.weight", (128, 128), 0, 0)]
    write(
        found["STRANGE"], header(strange | {"general.architecture": HOSTILE} | named, tensor),
        data_bytes=4 * 128 * 128,
    )  # fmt: skip
    write(found["NAMED"], header(llama_values() | named, tensor), data_bytes=4 * 128 * 128)
    return found


def settings_of_others(folder: Path) -> None:
    """What `kvchat import` reads, with hostile keys and values."""
    shell = HOSTILE.replace("'", "")
    for name, text in {
        "serve.sh": f"llama-server -m 'm{shell}.gguf' --odd '{shell}' --ctx-size '{shell}'\n",
        "swap.yaml": f"models:\n  {QUOTED}:\n    cmd: llama-server -m {QUOTED} --odd {QUOTED}\n",
        "models.ini": f"version = 1\n[{shell}]\nmodel = {shell}.gguf\n{shell} = {shell}\n",
        "Modelfile": f"FROM {shell}.gguf\nPARAMETER num_ctx 4096\nPARAMETER {shell} {shell}\n",
        "lm.json": f'{{"load": {{"fields": [{{"key": {QUOTED}, "value": {QUOTED}}}]}}}}',
        "kobold.kcpps": f'{{"model_param": {QUOTED}, {QUOTED}: {QUOTED}, "contextsize": 4096}}',
        "server.env": f"LLAMA_ARG_MODEL={shell}.gguf\nLLAMA_ARG_{shell}={shell}\n",
        "chats.jsonl": f'{{"kind": {QUOTED}, {QUOTED}: {QUOTED}}}\n',
    }.items():
        (folder / name).write_text(text, newline="")


def files_of_kvchat(folder: Path) -> dict[str, Path]:
    """Presets, results and a file that is none of them."""
    presets = paths.presets_dir()
    presets.mkdir(parents=True)
    found = {
        "PRESET": presets / f"{HOSTILE}.toml", "WRONG": presets / f"wrong {HOSTILE}.toml",
        "RESULTS": folder / "results.json",
        "TOML": folder / f"{HOSTILE}.toml",
    }  # fmt: skip
    found["PRESET"].write_text(f"name = 'x'\ndescription = {QUOTED}\nsystem_prompt = {QUOTED}\n")
    found["WRONG"].write_text(f"name = {QUOTED}\n{QUOTED} = {QUOTED}\nn_ctx = {QUOTED}\n")
    found["TOML"].write_text(f"{QUOTED} = {HOSTILE}\n", newline="")
    failed = PromptRecord(HOSTILE, HOSTILE, 0.0, failure=HOSTILE, notes=(HOSTILE,))
    made = results(record({"combined:auto": 1.5}, prompt=HOSTILE, set_name=HOSTILE), failed,
                   arms=["combined:auto"])  # fmt: skip
    write_results(found["RESULTS"], replace(made, subject={"model": HOSTILE}))
    return found


def saved_chats_and_states() -> None:
    with ChatStore(paths.database_path()) as store:
        chat = add_chat(
            store,
            Chat(title=HOSTILE, model_path=f"/{HOSTILE}.gguf", system_prompt=LINES,
            sampling=SamplingSettings()),
        )  # fmt: skip
        asked = add_message(store, chat.id, None, "user", LINES)
        reply = StoredMessage(0, chat.id, asked.id, "assistant", LINES, model_name=HOSTILE)
        add_stored(store, reply)
        store.update_chat(chat.id, context_start=asked.id, summary=LINES)
    namespace = Namespace(NAMESPACE.key, f"/{HOSTILE}.gguf", ((HOSTILE, HOSTILE),))
    with SegmentStore(paths.snapshots_dir()) as folder:
        folder.write(namespace, STATE, payload_of(STATE))


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A world in which every name and text is hostile; what the words of `CASES` stand for."""
    folder = tmp_path / HOSTILE
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KVCHAT_MODELS", f"{folder}{os.pathsep}/{HOSTILE}")
    gpu = Device(HOSTILE, "gpu", 8 << 30, 8 << 30)
    monkeypatch.setattr(engine.memory.hardware, "find_gpus", lambda: (gpu,))
    monkeypatch.setattr("app.doctor.find_nvidia_gpus", lambda: (gpu,))
    monkeypatch.setattr("engine.planning.measured.holders", lambda: [HOSTILE])
    monkeypatch.setattr(engine.process.client, "WorkerClient", HostileClient)
    monkeypatch.setattr("app.doctor.WorkerClient", HostileClient)
    monkeypatch.setattr("app.cli.models.install_starter", hostile_install)
    monkeypatch.setattr(main, "_require_terminal", lambda _: None)
    monkeypatch.setattr("engine.process.server_process.find_llama_server", no_server)
    monkeypatch.setattr("app.cli.web.serve", lambda given, _, report: report(f"{given} {HOSTILE}"))
    monkeypatch.setattr(app.application.KvchatApp, "run", lambda _: None)
    files = models_in(folder) | files_of_kvchat(folder)
    settings_of_others(folder)
    saved_chats_and_states()
    with running(HostileHandler) as url:
        yield {
            **{name: str(path) for name, path in files.items()},
            "HOSTILE": HOSTILE, "FOLDER": str(folder), "KEY": STATE.key, "SERVER": url,
        }  # fmt: skip


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that click knows, by its words."""
    context = click.Context(group)
    for name in [*group.list_commands(context), *(["chat"] if not path else [])]:
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")


COMMANDS = dict(commands(main.cli))


def hostile_values(command: click.Command) -> Iterator[list[str]]:
    """The command with a hostile value for each option and argument, one at a time."""
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag:
            yield [*("STRANGE" for _ in arguments), option.opts[0], "HOSTILE"]
    for given in arguments:
        yield ["HOSTILE" if each is given else "MODEL" for each in arguments]
    yield [*("MODEL" for _ in arguments), "HOSTILE", "--HOSTILE"]
    yield ["--help"]


def test_no_command_is_forgotten_here() -> None:
    assert set(CASES) == set(COMMANDS)


SLOW = ("bench", "chat", "doctor", "plan", "run", "tune")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]
)
def test_no_command_lets_a_terminal_obey_what_it_reads(name: str, words: dict[str, str]) -> None:
    cases = [*map(str.split, CASES[name]), *hostile_values(COMMANDS[name])]
    known = re.compile("|".join(words))
    for case in cases:
        message = [known.sub(lambda match: words[match[0]], word) for word in case]
        shown = on_terminal(*name.split(), *message)
        assert shown.strip() or name == "chat", case
        assert "Traceback" not in shown, (case, shown)
        assert not harmful(shown), (case, harmful(shown), shown)


def test_a_completion_of_the_shell_is_harmless(words: dict[str, str]) -> None:
    asked = {"_KVCHAT_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
    for typed in ("plan", "export --format", "run --preset", HOSTILE):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COMP_WORDS", f"kvchat {typed} '{words['HOSTILE']}'")
            for name, value in asked.items():
                patch.setenv(name, value)
            assert not harmful(on_terminal())


@pytest.mark.parametrize("command", ["where", "cache list", "doctor --help", "models"])
def test_the_settings_are_reported_of_harmlessly(command: str, words: dict[str, str]) -> None:
    del words
    paths.settings_path().write_text(f"{QUOTED} = 1\n[{QUOTED}]\n{QUOTED} = {QUOTED}\n")
    shown = on_terminal(*command.split())
    assert not harmful(shown), shown
    assert "owned" in shown or "--help" in command
