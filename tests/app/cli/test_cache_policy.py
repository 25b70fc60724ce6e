"""`--kv auto` from a saved measurement to what runs and what is exported; a real model, small."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from app import paths
from app.cli.main import run
from app.config import Settings
from app.opening import ModelRequest, open_model
from app.startup import Services, prepare
from engine.builds import installed_build
from engine.configuration import KVTypes
from engine.memory.hardware import this_processor
from engine.model.identity import model_identity
from engine.policy.plans import PlanStore
from engine.quality.records import Report
from tests.app.cli.conftest import json_of, kvchat, refusal, spawned, text_of
from tests.engine.policy.reports import Q4, Q8, WHOLE, report

MIXED = KVTypes("q8_0", "q5_1")


def of_this_machine(found: Report, path: Path) -> Report:
    subject = replace(
        found.subject,
        model=path.name,
        model_identity=model_identity(path),
        build=installed_build(),
        device=this_processor().name,
    )
    return replace(found, subject=subject)


def keep(path: Path, found: Report | None = None) -> Report:
    found = found or report({MIXED: 0.002, Q8: 0.001, Q4: 0.4}, {MIXED: 90.0, Q4: 120.0})
    measured = of_this_machine(found, path)
    return PlanStore(paths.cache_plans_dir()).save(measured)


def plan(*arguments: object) -> dict[str, object]:
    return json_of("plan", *map(str, arguments))


def types_of(found: dict[str, object]) -> str:
    arguments = found["args"]
    named = dict(pairwise(arguments))
    return f"{named.get('--cache-type-k', 'f16')}/{named.get('--cache-type-v', 'f16')}"


def test_a_plan_takes_the_measured_kind_and_reports_what_it_rests_on(starter_path: Path) -> None:
    keep(starter_path)
    found = plan(starter_path, "--kv", "auto")
    assert types_of(found) == "q8_0/q5_1"
    assert found["quality"] == {
        "basis": "measured",
        "text": "same top token 99.6 %, mean KL 0.0020",
        "passes_gates": True,
    }
    assert plan(starter_path, "--type-k", "auto", "--ctx", 1024)["quality"] == (found["quality"])


def test_without_a_measurement_it_is_marked_as_a_guess(starter_path: Path) -> None:
    found = plan(starter_path, "--kv", "auto")
    quality = found["quality"]
    assert (types_of(found), quality["basis"]) == ("f16/f16", "guessed")
    assert "quality on your text guessed" in text_of("plan", str(starter_path))


def test_a_budget_holds_to_the_byte_by_figures_and_by_guess(
    starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = 30 * 8192 * 2 * 192 * 2  # layers, tokens, K and V, elements, bytes
    packed = whole * 34 // 64
    for budget, types in ((whole, "f16/f16"), (whole - 1, "q8_0/q8_0"), (packed, "q8_0/q8_0")):
        found = plan(starter_path, "--kv-budget", f"{budget}B", "--ctx", 8192)
        assert types_of(found) == types
    keep(starter_path, report({Q8: 0.001, Q4: 0.4}, {WHOLE: 90.0}))
    assert types_of(plan(starter_path, "--kv-budget", f"{packed}B")) == "q8_0/q8_0"
    assert run(["plan", str(starter_path), "--kv-budget", f"{packed - 1}B"]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "the smallest, q8_0, needs" in message


def test_a_type_that_broke_a_gate_is_not_found_by_any_goal_and_is_marked_in_the_table(
    starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(starter_path, report({Q8: 0.4, Q4: 0.5}, {Q8: 90.0, Q4: 120.0}))
    for goal in ("context", "quality", "speed", "balanced"):
        arguments = ["fit", str(starter_path), "--goal", goal, "--no-gpu", "--json"]
        assert run(arguments) == 0
        found = json.loads(capsys.readouterr().out)
        assert types_of(found) == "f16/f16"
        assert found["quality"]["basis"] == "measured"
    assert run(["plan", str(starter_path), "--type-k", "q8_0", "--type-v", "q8_0"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "quality on your text measured same top token 20.0 %, mean KL 0.4000; " in text


@pytest.mark.parametrize("name", ["llama-server", "compose"])
def test_an_export_whose_types_were_chosen_reports_by_what(
    starter_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    command = ["export", str(starter_path), "--format", name]
    budget = ["--kv-budget", "100MiB"]
    assert run([*command, "--kv", "auto", *budget]) == 0
    message = capsys.readouterr()
    note = "# K/V types guessed: q8_0, not measured on this model"
    assert note in message.err
    assert (note in message.out) is (name == "compose")
    assert run([*command, *budget, "--json"]) == 0
    assert note[2:] in json.loads(capsys.readouterr().out)["warnings"][0]
    keep(starter_path)
    assert run([*command, "--kv", "auto"]) == 0
    assert "# K/V types measured: q8_0 K with q5_1 V" in capsys.readouterr().err
    assert run([*command, "--kv", "q4_0"]) == 0
    assert "# cache" not in capsys.readouterr().err


def test_a_preset_that_leaves_the_types_open_takes_the_measured_ones(
    starter_path: Path, tmp_path: Path
) -> None:
    keep(starter_path)
    preset = tmp_path / "mine.toml"
    preset.write_text('name = "mine"\ntype_k = "auto"\nn_ctx = 1024\n')
    assert types_of(plan(starter_path, "--preset", preset)) == "q8_0/q5_1"
    preset.write_text('name = "mine"\ntype_k = "auto"\ntype_v = "q8_0"\nn_ctx = 1024\n')
    assert types_of(plan(starter_path, "--preset", preset)) == "q8_0/q8_0"
    preset.write_text('name = "mine"\ngoal = "context"\ntype_k = "auto"\nkv_budget_gib = 0.085\n')
    assert types_of(plan(starter_path, "--preset", preset)) == "q8_0/q5_1"
    preset.write_text('name = "mine"\ntype_k = "q8_0"\ntype_v = "q8_0"\nkv_budget_gib = 1\n')
    assert "both a cache budget" in refusal("plan", str(starter_path), "--preset", str(preset))


def test_a_broken_plan_is_reported_not_used_and_left_alone(starter_path: Path) -> None:
    keep(starter_path)
    [path] = paths.cache_plans_dir().iterdir()
    path.write_bytes(path.read_bytes()[:100])
    found = plan(starter_path, "--kv", "auto")
    quality, warnings = found["quality"], found["warnings"]
    assert quality["basis"] == "guessed"
    assert any(str(path) in each and "is ignored" in each for each in warnings)
    opened = open_model(ModelRequest(str(starter_path), kv="auto"), Settings())
    guessed, message = (opened.types_note or "").splitlines()
    assert guessed.startswith("K/V types guessed: f16")
    assert message.startswith(f"{path} is ignored")
    assert len(path.read_bytes()) == 100


def test_an_old_plan_is_used_and_asked_to_be_measured_again(starter_path: Path) -> None:
    store = PlanStore(paths.cache_plans_dir())
    saved = keep(starter_path)
    long_ago = datetime.now(UTC) - timedelta(days=31)
    old = store.find(saved.subject.model_identity, installed_build()).plans[0]
    [path] = paths.cache_plans_dir().iterdir()
    text = path.read_text().replace(old.started, long_ago.isoformat(timespec="seconds"))
    path.write_text(text)
    found = plan(starter_path, "--kv", "auto")
    assert types_of(found) == "q8_0/q5_1"
    warnings = found["warnings"]
    assert any("31 days ago" in each and str(starter_path) in each for each in warnings)
    settings = paths.settings_path()
    settings.parent.mkdir(parents=True)
    settings.write_text("[cache_policy]\nprobe_days = 0\n")
    never = plan(starter_path, "--kv", "auto")["warnings"]
    assert not any("days ago" in each for each in never)


def test_each_gate_is_a_setting(starter_path: Path) -> None:
    keep(starter_path)
    settings = paths.settings_path()
    settings.parent.mkdir(parents=True)
    settings.write_text("[cache_policy]\nmax_mean_kl = 0.001\n")
    assert types_of(plan(starter_path, "--kv", "auto")) == "f16/f16"


def test_a_kv_that_is_no_type_is_refused_by_name() -> None:
    done = kvchat("run", "Hi", "--kv", "q9")
    assert done.returncode == 2
    assert "'q9' is not a cache type" in done.stderr


def test_the_chat_reports_why_its_cache_has_the_types_that_were_left_open(
    starter_path: Path,
) -> None:
    keep(starter_path)
    settings = Settings()
    opened = open_model(ModelRequest(str(starter_path), kv="auto"), settings)
    assert opened.configuration.kv_types == MIXED
    assert opened.types_note.startswith("K/V types measured: q8_0 K with q5_1 V")
    named = open_model(ModelRequest(str(starter_path), n_ctx=1024, kv="q4_0"), settings)
    assert (named.configuration.type_k, named.configuration.n_ctx) == ("q4_0", 1024)
    assert named.types_note is None
    small = open_model(ModelRequest(str(starter_path), n_ctx=512, kv_budget=8 << 20), settings)
    assert (small.configuration.type_k, small.configuration.n_ctx) == ("q8_0", 512)
    with prepared(ModelRequest(str(starter_path), kv="auto")) as services:
        configuration = services.configure(starter_path)
        assert services.types_note(configuration) == opened.types_note


@contextmanager
def prepared(request: ModelRequest) -> Iterator[Services]:
    """What the screen opens with."""
    parts = prepare(request)
    try:
        yield parts.services
    finally:
        parts.close()


@pytest.mark.slow
@pytest.mark.model
def test_a_new_user_types_one_command_reads_one_sentence_and_runs_with_that_type(
    starter_path: Path,
) -> None:
    measured = spawned("cache-quality", str(starter_path), "--kinds", "q8_0", "--tokens", "8100",
                      "--ctx", "2048", "--threads", "1", "--no-questions",
                      "--no-speeds")  # fmt: skip
    assert measured.returncode == 0, measured.stderr
    *_, sentence, command = measured.stdout.strip().splitlines()
    name = sentence.partition(":")[0]
    assert command == f"To chat with {name}: kvchat {starter_path} --kv auto"
    planned = json.loads(spawned("plan", str(starter_path), "--kv", "auto", "--json").stdout)
    assert planned["quality"]["basis"] == "measured"
    assert types_of(planned) == f"{name}/{name}"
    answered = spawned("run", "Hi", "-m", str(starter_path), "--kv", "auto", "--max-tokens", "1")
    assert answered.returncode == 0
    assert "K/V types measured: " in answered.stderr
