"""Files of many prompts: read line by line, answered at once, gone on with where a run ended."""

import json
import os
from pathlib import Path
from typing import cast

import pytest

from app.batch import BatchError, BatchProgress, ResultsFile, answer_all, read_requests, with_slots
from app.opening import ModelRequest
from engine.configuration import Adapter, Configuration, SamplingSettings
from engine.errors import WorkerError
from engine.events import (
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerationStats,
    OfReply,
    WorkerStopped,
)
from engine.process.blocking_client import BlockingClient
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest, Message
from tests.support.fakes_client import CONFIGURATION, loaded

BASE = GenerationRequest(
    sampling=SamplingSettings(temperature=0.5), max_tokens=9, seed=4, stop=("END",)
)


def written(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("\n".join(texts) + "\n", "utf-8")
    return path


class EchoingClient:
    """Answers with the prompt, the last asked first.

    A prompt `fail` is refused, and the engine ends on a prompt `crash`.
    """

    def __init__(self, *, restarts: bool = True) -> None:
        self.asked: list[int] = []
        self._restarts, self._is_gone = restarts, True
        self.most_at_once = 0
        self._running: list[tuple[int, GenerationRequest]] = []

    def load(self, configuration: Configuration) -> None:
        if not self._restarts and self.asked:
            raise WorkerError("it cannot be started")

    def generate(self, request: GenerationRequest, reply_id: int = 0) -> None:
        self.asked.append(reply_id)
        self._running.append((reply_id, request))
        self.most_at_once = max(self.most_at_once, len(self._running))

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        if self._is_gone:
            self._is_gone = False
            return [loaded(CONFIGURATION)]
        if any(request.messages[-1].content == "crash" for _, request in self._running):
            self._running.clear()
            self._is_gone = True
            return [WorkerStopped("Ended", "the process ended", None)]
        reply_id, request = self._running.pop()
        text = request.messages[-1].content
        if text == "fail":
            return [OfReply(reply_id, Failed("No space", "the prompt is too long"))]
        return [OfReply(reply_id, finished(text))]


def finished(text: str, reason: FinishReason = FinishReason.END) -> Finished:
    return Finished(reason, text, (1, 2), "v", 4, GenerationStats(n_prompt=3, n_emitted=3))


def run(
    path: Path, out: Path, client: EchoingClient, n_at_once: int = 2, answered_by: str = "m"
) -> BatchProgress:
    requests, _ = read_requests(path, BASE, "", answered_by=answered_by)
    with ResultsFile(out) as results:
        done = results.done()
        left = [one for one in requests if one.key not in done]
        progress = BatchProgress(len(requests), len(requests) - len(left))
        engine = BlockingClient(cast(EngineClient, client))
        engine.load(CONFIGURATION)
        for _ in answer_all(engine, left, results, progress, n_at_once=n_at_once):
            pass
    return progress


def lines_of(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


def test_a_line_reports_what_is_its_own_and_has_the_rest_of_the_command(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"prompt": "one"},
        {"id": "b", "prompt": "two", "temperature": 0, "max_tokens": 3, "seed": 8, "stop": "x"},
        {"id": 7, "messages": [{"role": "user", "content": "three"}], "system": "Be brief."},
        {"prompt": "four", "raw": True},
    )
    [first, second, third, fourth], broken = read_requests(path, BASE, "Help.")
    assert broken == []
    assert [first.id, second.id, third.id] == [None, "b", 7]
    assert first.request.messages == (Message("system", "Help."), Message("user", "one"))
    assert (first.request.max_tokens, first.request.seed, first.request.stop) == (9, 4, ("END",))
    assert second.request.sampling.temperature == 0
    assert (second.request.max_tokens, second.request.seed) == (3, 8)
    assert second.request.stop == ("x",)
    assert third.request.messages[0] == Message("system", "Be brief.")
    assert (fourth.request.raw_prompt, fourth.request.messages) == ("four", ())


def test_a_line_has_a_grammar_stop_tokens_and_adapters_of_its_own(tmp_path: Path) -> None:
    adapter = tmp_path / "formal.gguf"
    adapter.write_bytes(b"GGUF")
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    path = written(
        tmp_path,
        {"prompt": "a", "json_schema": schema, "stop_tokens": [3]},
        {"prompt": "b", "grammar": 'root ::= "yes" | "no"', "lora": [f"{adapter}:0.5"]},
        {"prompt": "c", "lora": []},
        {"prompt": "d"},
        {"prompt": "e", "json_schema": {"type": "wrong"}},
        {"prompt": "f", "grammar": "root ::= other"},
        {"prompt": "g", "grammar": "x", "json_schema": {}},
        {"prompt": "h", "lora": [str(tmp_path / "none.gguf")]},
    )
    requests, broken = read_requests(path, BASE, "")
    first, second, third, fourth = (each.request for each in requests)
    assert json.loads(first.grammar.text) == schema
    assert first.sampling.stop_tokens == (3,)
    assert not second.grammar.is_schema
    assert second.adapters == (Adapter(adapter, 0.5),)
    assert third.adapters == ()
    assert (fourth.adapters, fourth.grammar) == (None, None)
    assert [line.number for line in broken] == [5, 6, 7, 8]
    assert "JSON schema of the line is not valid" in broken[0].reason
    assert "remove one" in broken[2].reason
    assert "does not exist" in broken[3].reason


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not json", "not valid JSON: expecting value at character 1"),
        ("[1]", "not a JSON object"),
        (
            {"prompt": "a", "temprature": 1},
            "temprature is an unknown key, did you mean temperature?",
        ),
        ({"prompt": "a", "messages": []}, "must be set"),
        ({"prompt": "  "}, "prompt is empty"),
        ({"messages": []}, "prompt is empty"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "seed": "4"}, "seed"),
        ({"id": "first", "prompt": "again"}, "line 1 also has the id"),
        ('{"prompt": "half \\ud800"}', "surrogate pair"),
        ("[" * 100_000, "nested"),
        ({"prompt": "a", "raw": True, "system": "b"}, "raw"),
    ],
)
def test_a_broken_line_is_reported_by_its_number_and_the_others_run(
    tmp_path: Path, line: object, why: str
) -> None:
    first, last = {"id": "first", "prompt": "one"}, {"id": "z", "prompt": "three"}
    path = written(tmp_path, first, "", line, last)
    requests, [broken] = read_requests(path, BASE, "")
    assert [one.number for one in requests] == [1, 4]
    assert broken.number == 3
    assert why in broken.reason


def test_a_line_in_another_encoding_is_reported_so(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "caf\xe9"}\n')
    assert "not UTF-8 text" in read_requests(path, BASE, "")[1][0].reason


def test_results_are_appended_as_replies_end_and_failures_are_reported(tmp_path: Path) -> None:
    path = written(tmp_path, *({"prompt": text} for text in ("a", "fail", "c", "d", "e")))
    client, out = EchoingClient(), tmp_path / "deep" / "out.jsonl"
    progress = run(path, out, client)
    assert client.most_at_once == 2
    assert (progress.n_done, progress.n_all, progress.n_tokens) == (4, 5, 12)
    assert [each.number for each in progress.failed] == [2]
    assert sorted(str(each["text"]) for each in lines_of(out)) == ["a", "c", "d", "e"]
    assert out.stat().st_mode & 0o777 == 0o600


def test_what_is_in_the_results_already_is_not_done_again(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(written(tmp_path, {"prompt": "a"}, {"prompt": "b"}), out, EchoingClient())
    client = EchoingClient()
    path = written(tmp_path, {"prompt": "a"}, {"prompt": "changed"}, {"prompt": "c"})
    progress = run(path, out, client)
    assert sorted(client.asked) == [2, 3]
    assert progress.n_done == 3
    assert [each["text"] for each in lines_of(out)][2:] in (["c", "changed"], ["changed", "c"])


def test_an_id_is_not_the_number_of_another_line(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    path = written(tmp_path, {"id": 2, "prompt": "a"}, {"prompt": "b"}, {"id": "2", "prompt": "c"})
    assert run(path, out, EchoingClient()).n_done == 3
    assert sorted(str(each["id"]) for each in lines_of(out)) == ["2", "2", "None"]
    client = EchoingClient()
    assert run(path, out, client).n_done == 3
    assert client.asked == []


def test_results_of_another_model_do_not_count(tmp_path: Path) -> None:
    out, path = tmp_path / "out.jsonl", written(tmp_path, {"prompt": "a"})
    run(path, out, EchoingClient(), answered_by="one")
    client = EchoingClient()
    assert run(path, out, client, answered_by="other").n_done == 1
    assert client.asked == [1]
    assert len(lines_of(out)) == 2


@pytest.mark.parametrize("n_at_once", [1, 2, 4])
def test_a_prompt_that_ends_the_engine_fails_and_the_others_are_answered(
    tmp_path: Path, n_at_once: int
) -> None:
    texts = ("a", "crash", "c", "d", "crash", "f")
    path, out = written(tmp_path, *({"prompt": text} for text in texts)), tmp_path / "out.jsonl"
    progress = run(path, out, EchoingClient(), n_at_once)
    assert sorted(str(each["text"]) for each in lines_of(out)) == ["a", "c", "d", "f"]
    assert sorted(each.number for each in progress.failed) == [2, 5]


def test_a_result_that_was_torn_is_made_again_and_harms_no_other(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    path = written(tmp_path, {"prompt": "a"}, {"prompt": "b"})
    run(path, out, EchoingClient(), n_at_once=1)
    whole = out.read_bytes()
    out.write_bytes(whole[:-9])
    client = EchoingClient()
    run(path, out, client, n_at_once=1)
    assert client.asked == [2]
    *_, last = out.read_bytes().splitlines(keepends=True)
    assert last in whole.splitlines(keepends=True) or b'"text": "b"' in last
    assert last.endswith(b"\n")


def test_a_full_disk_leaves_whole_lines_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    real = os.write
    with ResultsFile(out) as results:
        results.append({"id": "1"})
        monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:5]))
        with pytest.raises(BatchError, match="disk is full"):
            results.append({"id": "2"})
    assert lines_of(out) == [{"id": "1"}]


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with ResultsFile(out), pytest.raises(BatchError, match="another run is"):
        ResultsFile(out)
    with ResultsFile(out):
        pass


def test_a_file_that_is_none_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="cannot be read"):
        read_requests(tmp_path / "nothing.jsonl", BASE, "")
    with pytest.raises(BatchError, match="cannot be written"):
        ResultsFile(tmp_path)


def test_each_reply_has_the_context_that_was_asked_for() -> None:
    one = Configuration(model_path=Path("m.gguf"), n_ctx=8192)
    shared = with_slots(ModelRequest("m"), one, 8)
    assert (shared.n_ctx, shared.rules["n_slots"]) == (8192, 8)
    assert with_slots(ModelRequest("m", n_ctx=2048), one, 8).n_ctx == 16384
