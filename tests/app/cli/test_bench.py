"""`kvchat bench` as a user meets it, on the starter model."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.experiment.records import Row, Sample, read_results, write_results
from tests.app.cli.conftest import kvchat, refusal, spawned
from tests.engine.experiment.made_results import record, results, sample, stats
from tests.support.waiting import PATIENCE_S, wait_until

KVCHAT = str(Path(sys.executable).with_name("kvchat"))
AUTO = "combined:auto"
FEW = ("--max-tokens", "8", "--ctx", "1024", "--threads", "1")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    lines = ["Count: one two one two one", "Name three colours.", "Name three rivers."]
    text = "\n".join(json.dumps({"prompt": line}) for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.model
@pytest.mark.slow
def test_two_prompts_are_measured_saved_and_reported(
    starter_path: Path, prompts: Path, tmp_path: Path
) -> None:
    json_path, html_path = tmp_path / "all.json", tmp_path / "all.html"
    arguments = ("bench", str(starter_path), *FEW, "--prompt-set", str(prompts))
    arguments += ("--arm", "lookup:fixed:2")
    arguments += ("--arm", "combined:auto", "--json", str(json_path), "--html", str(html_path))
    done = spawned(*arguments, "--prompts", "2")
    assert done.returncode == 0, done.stderr
    assert "mine at temperature 0  2 prompts" in done.stdout
    assert "Recommended: nothing yet" in done.stdout
    lines = done.stderr.splitlines()
    assert len([line for line in lines if line.startswith("mine at temperature 0")]) == 2
    results = read_results(json_path)
    assert [sample.arm for sample in results.prompts[0].rows[0]] == [
        "plain", *["lookup:fixed:2"] * 2, "plain", *["combined:auto"] * 2, "plain",
    ]  # fmt: skip
    assert all(sample.stats.n_emitted == 8 for sample in results.prompts[0].rows[0])
    assert "0.3.36" in results.machine["llama_cpp"]
    assert html_path.read_text(encoding="utf-8").endswith("</html>\n")

    shown = spawned("bench", "--show", str(json_path))
    assert shown.stdout == done.stdout

    more = spawned(*arguments, "--prompts", "3")
    assert more.returncode == 0, more.stderr
    resumed = read_results(json_path)
    assert resumed.prompts[:2] == results.prompts
    assert len(resumed.prompts) == 3
    other = spawned(*arguments, "--seed", "9")
    assert "seed was 1 and is 9" in other.stderr


@pytest.mark.slow
@pytest.mark.model
def test_a_draft_model_takes_part_and_a_prompt_too_long_does_not_end_it(
    starter_path: Path, prompts: Path, tmp_path: Path
) -> None:
    with prompts.open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps({"prompt": "word " * 2000}))
    done = spawned(
        "bench", str(starter_path), "--draft", str(starter_path), *FEW,
        "--prompt-set", str(prompts),
        "--arm", "draft:fixed:2", "--json", str(tmp_path / "all.json"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "failed" in done.stdout
    assert "raise n_ctx" in done.stdout
    records = read_results(tmp_path / "all.json").prompts
    assert [record.failure is None for record in records] == [True, True, True, False]
    assert records[0].rows[0][1].stats.by_source["draft"].n_verified > 0


@pytest.mark.slow
@pytest.mark.model
def test_interrupting_gives_the_table_of_what_was_measured(
    starter_path: Path, prompts: Path, tmp_path: Path
) -> None:
    json_path = tmp_path / "all.json"
    command = [
        KVCHAT,
        "bench",
        str(starter_path),
        "--prompt-set",
        str(prompts),
        "--arm",
        "lookup:auto",
    ]
    command += ["--json", str(json_path), "--max-tokens", "8", "--blocks", "20", "--threads", "1"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: json_path.is_file() and read_results(json_path).prompts)
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, stderr
    assert "stopped; the results" in stderr
    assert "mine at temperature 0" in stdout
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    "row",
    [
        (sample("plain"), sample(AUTO), sample(AUTO)),
        (sample(AUTO), sample(AUTO), sample("plain"), sample("plain")),
        (sample("plain"), sample("plain"), sample("plain"), sample("plain")),
        *(
            (sample("plain"), *[Sample(AUTO, stats(**wrong))] * 2, sample("plain"))
            for wrong in ({"decode_s": 0.0}, {"decode_s": -1.0}, {"n_emitted": -1},
                          {"decode_s": 1e-320}, {"decode_s": 1e308})
        ),
    ],
)  # fmt: skip
def test_a_results_file_of_impossible_rows_is_refused(row: Row, tmp_path: Path) -> None:
    made = replace(record({AUTO: 1.5}), rows=(row,))
    write_results(tmp_path / "all.json", results(made, arms=[AUTO]))
    assert "cannot be read" in refusal("bench", "--show", str(tmp_path / "all.json"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt-set", "nothing"), "no prompt set or file is called 'nothing'"),
        (("--arm", "luck"), "there is no predictor 'luck'"),
        (("--arm", "lookup:fixed:99"), "from 1 to 16"),
        (("--arm", "plain"), "always measured"),
        (("--write", "balanced"), "is built in"),
        (("--html", "/dev/null/x.html"), "/dev/null/x.html cannot be written"),
        (("--json", __file__), "cannot be read as benchmark results"),
        (("no-such-model",), "no-such-model"),
        (("x" * 300,), "x" * 300),
        ((f"/{'x' * 300}",), "does not exist"),
        (("--prompt-set", "x" * 300), "no prompt set or file is called"),
        (("--json", "x" * 300, "no-such-model"), "no-such-model"),
    ],
)
def test_bad_input_is_one_clear_message_before_a_model_loads(
    arguments: tuple[str, ...], message: str
) -> None:
    done = kvchat("bench", *arguments)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
