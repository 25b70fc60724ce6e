"""What a reply may be, token ids, adapters and reading ahead, as `kvchat run` takes them."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.app.cli.conftest import run_process
from tests.engine.backends.test_parameters import write_adapter

pytestmark = pytest.mark.model
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "child.json"
    path.write_text(json.dumps(SCHEMA))
    return path


def run(
    model: Path, environment: dict[str, str], *arguments: str, typed: str | None = None
) -> "subprocess.CompletedProcess[str]":
    usual = ["--model", str(model), "--temperature", "0", "--threads", "1", "--json"]
    return run_process([*usual, *arguments], environment, input=typed)


@pytest.mark.parametrize("predictor", ["off", "suffix"])
def test_a_reply_fits_its_schema_with_any_predictor(
    starter_path: Path, environment: dict[str, str], schema: Path, predictor: str
) -> None:
    rule = ["--json-schema", str(schema), "--predictor", predictor, "--max-tokens", "90"]
    done = run(starter_path, environment, *rule, "Describe a child as JSON.")
    assert done.returncode == 0, done.stderr
    reply = json.loads(done.stdout)
    child = json.loads(reply["text"])
    assert set(child) == {"name", "age"}
    assert (reply["fits_grammar"], reply["finish_reason"]) == (True, "end")


def test_a_reply_that_is_cut_before_its_schema_fails_and_reports_why(
    starter_path: Path, environment: dict[str, str], schema: Path
) -> None:
    rule = ["--json-schema", str(schema), "--max-tokens", "4"]
    done = run(starter_path, environment, *rule, "Describe a child as JSON.")
    assert done.returncode == 1
    assert "before the schema or grammar was satisfied: raise --max-tokens" in done.stderr
    assert json.loads(done.stdout)["fits_grammar"] is False


def test_a_faulty_grammar_is_reported_with_its_line_before_a_model_is_loaded(
    starter_path: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    path = tmp_path / "answer.gbnf"
    path.write_text('root ::= "yes"\nno rule\n')
    done = run(starter_path, environment, "--grammar", str(path), "Well?")
    assert done.returncode == 1
    assert "answer.gbnf is not valid GBNF: Expected ::= at line 2" in done.stderr
    assert done.stdout == ""
    both = run(starter_path, environment, "--grammar", str(path), "--json-schema", "x", "Well?")
    assert both.returncode == 2
    assert "--grammar, not both" in both.stderr


def test_token_ids_are_a_prompt_and_a_stop_token_ends_the_reply(
    starter_path: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text("[504, 2365, 282]")
    whole = run(starter_path, environment, "--tokens", str(ids), "--max-tokens", "8")
    assert whole.returncode == 0, whole.stderr
    reply = json.loads(whole.stdout)
    assert reply["n_prompt"] == 3
    stop = reply["token_ids"][2]
    n_before = reply["token_ids"].index(stop)
    cut = run(
        starter_path, environment, "--tokens", "504,2365,282", "--max-tokens", "8",
        "--stop-token", str(stop),
    )  # fmt: skip
    ended = json.loads(cut.stdout)
    assert ended["finish_reason"] == "stop token"
    assert ended["token_ids"] == reply["token_ids"][:n_before]
    ids.write_text("1 two 3")
    wrong = run(starter_path, environment, "--tokens", str(ids))
    assert wrong.returncode == 2
    assert "token id 2 is 'two'" in wrong.stderr
    beyond = run(starter_path, environment, "--tokens", "1,99999999")
    assert beyond.returncode == 1
    assert "token 99999999 at position 2 is not in" in beyond.stderr


def test_an_adapter_works_with_its_scale_and_another_models_is_refused(
    starter_path: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    strong = write_adapter(tmp_path / "strong.gguf", scale=1.0)
    foreign = write_adapter(tmp_path / "foreign.gguf", scale=1.0, architecture="gemma3")
    usual = ["--max-tokens", "8", "Write something."]

    def tokens(*arguments: str) -> list[int]:
        done = run(starter_path, environment, *arguments, *usual)
        assert done.returncode == 0, done.stderr
        found: list[int] = json.loads(done.stdout)["token_ids"]
        return found

    plain = tokens()
    assert tokens("--lora", f"{strong}:0") == plain
    assert tokens("--lora", f"{strong}:8") != plain
    refused = run(starter_path, environment, "--lora", str(foreign), *usual)
    assert refused.returncode == 1
    assert "foreign.gguf is not an adapter" in refused.stderr


def test_a_system_prompt_is_read_while_the_input_is_typed(
    starter_path: Path, environment: dict[str, str]
) -> None:
    system = ["--system", "You answer in one word. " * 8, "--max-tokens", "4"]
    done = run(starter_path, environment, *system, "--preload", typed="Hello there.")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_reused"] > 40
    refused = run(starter_path, environment, "--preload", "typed already")
    assert refused.returncode == 2
    assert "--preload reads the prompt" in refused.stderr
