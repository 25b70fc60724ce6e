"""Values of command line, preset and settings reach the engine."""

import io
import sys
from pathlib import Path

import pytest

from app import paths
from app.cli import main
from app.store.chats import ChatStore
from app.store.records import Chat
from engine.events import WorkerStopped
from engine.requests import Message
from tests.app.cli.terminals import HOSTILE
from tests.support.chats import add_chat
from tests.support.drafting_models import drafting_model
from tests.support.fakes_client import Script, ScriptedClient


def asked(command: str, model: Path, *arguments: str) -> list[str]:
    rest = (
        ["hello", "--model", str(model)]
        if command == "run"
        else [str(model), "hello", "--second", "lookup"]
    )
    return [command, *rest, *arguments]


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(
    ("arguments", "instruction"),
    [
        ([], "Be kind."),
        (["--preset", "terse"], "Be terse."),
        (["--preset", "terse", "--system", "Be odd."], "Be odd."),
        (["--preset", "terse", "--system", ""], None),
    ],
)
def test_the_system_prompt_is_the_typed_one_else_the_presets_else_that_of_the_settings(
    client: ScriptedClient, model: Path, command: str, arguments: list[str], instruction: str | None
) -> None:
    assert main.run(asked(command, model, *arguments)) == 0
    system = () if instruction is None else (Message("system", instruction),)
    assert client.requests[0].messages == (*system, Message("user", "hello"))


@pytest.mark.parametrize(("arguments", "n"), [([], 77), (["--max-tokens", "8"], 8)])
def test_a_reply_is_as_long_as_the_settings_or_the_option_report(
    client: ScriptedClient, model: Path, arguments: list[str], n: int
) -> None:
    assert main.run(asked("run", model, *arguments)) == 0
    assert client.requests[0].max_tokens == n
    assert client.requests[0].sampling.temperature == 0.25


def test_without_a_model_the_one_used_last_answers(
    client: ScriptedClient, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = drafting_model(tmp_path / "other.gguf", 1)
    monkeypatch.setenv("KVCHAT_MODELS", str(tmp_path))
    assert main.run(["run", "hello"]) == 0
    with ChatStore(paths.database_path()) as store:
        add_chat(store, Chat(model_path=str(model)))
    assert main.run(["run", "hello"]) == 0
    assert [load.model_path for load in client.loads] == [other, model]


@pytest.mark.parametrize("command", [["run"], ["compare", "a-model"]])
@pytest.mark.parametrize(
    ("prompt", "piped"), [([""], ""), ([" \n"], ""), ([], ""), (["-"], "\n"), ([], " ")]
)
def test_an_empty_prompt_is_refused(
    command: list[str],
    prompt: list[str],
    piped: str,
    client: ScriptedClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(piped))
    assert main.run([*command, *prompt]) == 2
    assert "the prompt is empty: write kvchat" in capsys.readouterr().err
    assert not client.loads


@pytest.mark.parametrize("command", [["run"], ["compare", "a-model"]])
@pytest.mark.parametrize(
    "option", ["--temperature=nan", "--temperature=-1", "--temperature=11", "--seed=-5",
               f"--seed={10**20}"]
)  # fmt: skip
def test_a_number_out_of_its_bounds_is_refused_by_its_option(
    command: list[str], option: str, client: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*command, "hello", option]) == 2
    assert option.partition("=")[0] in capsys.readouterr().err
    assert not client.loads


@pytest.mark.parametrize("plan", ["", "0", "128/", "128/0", "fast", "1/2/3", "-5"])
def test_a_decode_plan_that_is_none_is_refused(
    plan: str, client: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["run", "hello", "--backend", "torch", "--set", f"decode_plan={plan}"]) == 2
    assert "decode_plan" in capsys.readouterr().err
    assert not client.loads


def test_what_is_asked_of_torch_reaches_the_engine(client: ScriptedClient, model: Path) -> None:
    torch = ["--backend", "torch", "--set", "kv_cache=kivi4", "--set", "decode_plan=128/512"]
    torch += ["--set", "compile=auto", "--set", "kv_trace=trace.jsonl"]
    assert main.run(asked("run", model, *torch)) == 0
    [loaded] = client.loads
    assert loaded.compile == "auto"
    assert (loaded.backend, loaded.kv_cache) == ("torch", "kivi4")
    assert (loaded.decode_plan, loaded.kv_trace) == ("128/512", Path("trace.jsonl"))


def test_any_key_of_a_preset_is_set_on_the_command_line(
    client: ScriptedClient, model: Path
) -> None:
    assert main.run(asked("run", model, "--set", "n_ubatch=128", "--set", "use_mmap=false")) == 0
    assert main.run(asked("run", model, "--backend", "torch", "--set", "kv_cache=nf4")) == 0
    first, second = client.loads
    assert (first.n_ubatch, first.use_mmap) == (128, False)
    assert second.kv_cache == "nf4"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("n_ubatchh=128", "mean n_ubatch"), ("n_ubatch=many", "n_ubatch is 'many'"),
     ("model=a.gguf", "a preset key"), ("n_ubatch", "a preset key"), ("tensor_split=[1", "a list")],
)  # fmt: skip
def test_a_wrong_key_or_value_is_refused(
    rule: str, expected: str, client: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["run", "hello", "--set", rule]) == 2
    assert expected in capsys.readouterr().err
    assert not client.loads


def test_a_raw_prompt_takes_no_instruction(
    client: ScriptedClient, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(asked("run", model, "--raw", "--system", "Be odd.")) == 2
    assert "leave out --system" in capsys.readouterr().err
    assert main.run(asked("run", model, "--raw")) == 0
    assert client.requests[0].raw_prompt == "hello"
    assert client.requests[0].messages == ()


def test_an_input_that_is_no_text_is_refused(
    client: ScriptedClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    assert main.run(["run"]) == 2
    assert "not utf-8 text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "verification", "bonus_token"),
    [
        ("", "rejection", False),
        ("--preset exact", "coupled", True),
        ("--verification coupled --bonus-token", "coupled", True),
        ("--preset exact --no-bonus-token", "coupled", False),
    ],
)
def test_drafts_are_verified_as_typed_else_as_the_preset_reports_else_as_the_settings_do(
    typed: str, verification: str, bonus_token: bool, client: ScriptedClient, model: Path
) -> None:
    exact = 'name = "exact"\n[speculation]\nverification = "coupled"\n'
    (paths.presets_dir() / "exact.toml").write_text(exact)
    paths.settings_path().write_text(
        '[speculation]\nverification = "rejection"\nbonus_token = false\n'
    )
    assert main.run(asked("run", model, *typed.split())) == 0
    settings = client.loads[0].speculation
    assert (settings.verification, settings.bonus_token) == (verification, bonus_token)


def test_a_reply_goes_into_a_pipe_as_it_is(
    client: ScriptedClient, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client.play(Script(replies=(HOSTILE,)))
    assert main.run(asked("run", model)) == 0
    assert capsys.readouterr().out == HOSTILE + "\n"


def test_an_engine_that_hangs_in_a_reply_ends_the_command_though_it_starts_again(
    client: ScriptedClient, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hung = WorkerStopped("The engine stopped answering", "for 15 s", None, will_restart=True)
    client.generate = lambda request: client.emit(hung)  # type: ignore[method-assign]
    assert main.run(asked("run", model)) == 1
    assert "The engine stopped answering: for 15 s" in capsys.readouterr().err
    assert client.is_closed


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["batch", "--model", "{model}", "{model}"], "--out"),
        (["batch", "--model", "{model}", "{model}", "--out", "{model}"], "the same file"),
        (["run", "--tokens", "gone.txt"], "file of token ids"),
        (["run", "--tokens", "[ ]"], "token ids"),
        (["run", "hello", "--lora", "{model}:much"], "is not a scale"),
        (["fit", "qwen3-8b", "--json", "--format", "lm-studio"], "use only one"),
        (["export"], "specify MODEL"),
        (["{model}", "--model", "{model}"], "specify the model once"),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_model_is_loaded(
    typed: list[str],
    words: str,
    client: ScriptedClient,
    model: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run([each.format(model=model) for each in typed]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not client.loads


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (Script(("One two three",), fills_after=1), 0, "context is full: raise --ctx"),
        (Script(("One two three",), fails_after=1), 1, "llama_decode returned"),
        (Script(fails_to_load=("No memory", "load a smaller model")), 1, "load a smaller model"),
        (Script(dies_after=1), 1, "killed by signal 9"),
    ],
)
def test_a_reply_that_is_cut_or_fails_is_reported_on_standard_error(
    script: Script,
    code: int,
    words: str,
    client: ScriptedClient,
    model: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client.play(script)
    assert main.run(asked("run", model)) == code
    assert words in " ".join(capsys.readouterr().err.split())
