"""The comparison with other programs counts, keeps and judges what they said."""

from pathlib import Path

import pytest
import speed_page
from speed_peers.asked import Question
from speed_peers.catalogue import PEER_MODES, Mode, chosen_modes
from speed_peers.judge import row_of, verdict_of
from speed_peers.records import Head, PeerError, Reply, Run, append, open_results, read_results
from speed_peers.schedule import planned
from speed_peers.server import reply_of

AUTO = "kvchat combined:auto"
SETTINGS: dict[str, object] = {
    "model": "m.gguf", "draft": None, "sets": ["chat"], "prompts": 2, "tokens": 32, "threads": 2,
    "ctx": 512, "temperature": 0.0, "seed": 7,
}  # fmt: skip


def reply(tps: float, *, tokens: tuple[int, ...] = tuple(range(20)), **counts: int) -> Reply:
    return Reply(tokens, n_steps=len(tokens), elapsed_s=len(tokens) / tps, **counts)


def run(prompt: str, configuration: str, made: Reply, *, pair: int = 0) -> Run:
    return Run(pair, "chat", prompt, 0.0, configuration, made)


def runs_at(speeds: dict[str, tuple[float, ...]]) -> list[Run]:
    return [
        run(f"p{number}", configuration, reply(tps))
        for configuration, each in speeds.items()
        for number, tps in enumerate(each)
    ]


def head(**settings: object) -> Head:
    modes = chosen_modes(["combined:auto"], only=["llama-server*"], skip=[], has_draft=False)
    return Head(
        {**SETTINGS, **settings},
        {"processor": "a processor"},
        {"kvchat": {"kvchat": "abc"}, "node-llama-cpp": {"refused": "not installed"}},
        [{"key": mode.key, "name": mode.name, "settings": mode.settings} for mode in modes],
        "peers.py m.gguf",
    )


def test_a_ratio_is_taken_prompt_by_prompt_and_averaged_geometrically() -> None:
    runs = runs_at({"kvchat plain": (100, 50), "llama-server plain": (200, 25)})
    row = row_of(runs, "chat", "llama-server plain")
    assert row.to_kvchat_plain == pytest.approx(1.0)
    assert row.to_own_plain is None
    assert row.n_prompts == 2


def test_of_several_pairs_the_median_counts() -> None:
    runs = [run("p", "kvchat plain", reply(100), pair=pair) for pair in range(3)]
    runs += [run("p", AUTO, reply(tps), pair=pair) for pair, tps in enumerate((120, 900, 130))]
    assert row_of(runs, "chat", AUTO).to_kvchat_plain == pytest.approx(1.3)


def test_the_best_peer_is_chosen_by_its_mean_and_kvchat_is_no_peer() -> None:
    speeds = {"kvchat plain": (100, 100), AUTO: (150, 150), "kvchat lookup:fixed:3": (190, 190)}
    peers = {"llama-server plain": (90, 90), "llama-server ngram-mod": (125, 125)}
    runs = runs_at({**speeds, **peers})
    verdict = verdict_of(runs, "chat", [*speeds, *peers], AUTO)
    assert verdict is not None
    assert verdict.best == "llama-server ngram-mod"
    assert verdict.auto_to_best == pytest.approx(1.2)
    assert verdict.interval == pytest.approx((1.2, 1.2))


def test_plain_decoding_is_one_of_the_peers_configurations() -> None:
    speeds = {"kvchat plain": (100,), AUTO: (99,), "llama-server plain": (110,)}
    verdict = verdict_of(runs_at({**speeds, "llama-server x": (80,)}), "chat", [*speeds], AUTO)
    assert verdict is not None
    assert verdict.best == "llama-server plain"
    assert verdict.auto_to_best == pytest.approx(0.9)


def test_a_peer_with_fewer_prompts_is_compared_on_those_that_it_answered() -> None:
    runs = runs_at({"kvchat plain": (100, 100), AUTO: (300, 100), "transformers plain": (150,)})
    verdict = verdict_of(runs, "chat", ["transformers plain"], AUTO)
    assert verdict is not None
    assert (verdict.n_prompts, verdict.auto_to_best) == (1, pytest.approx(2.0))


def test_a_reply_too_short_for_a_speed_is_left_out() -> None:
    runs = runs_at({"kvchat plain": (100,), AUTO: (100,)})
    runs.append(run("short", "kvchat plain", reply(100, tokens=(1, 2))))
    runs.append(run("short", AUTO, reply(1, tokens=(1, 2))))
    assert row_of(runs, "chat", AUTO).n_prompts == 1


def test_looping_replies_are_left_out_where_asked() -> None:
    loop = tuple([1, 2, 3] * 20)
    runs = runs_at({"kvchat plain": (100,), AUTO: (100,), "llama-server x": (100,)})
    for name, tps in (("kvchat plain", 100), (AUTO, 300), ("llama-server x", 100)):
        runs.append(run("loop", name, reply(tps, tokens=loop)))
    verdicts = [
        verdict_of(runs, "chat", ["llama-server x"], AUTO, without_loops=each)
        for each in (False, True)
    ]
    assert [each and each.n_prompts for each in verdicts] == [2, 1]


def test_text_is_compared_with_the_same_programs_plain_text() -> None:
    runs = runs_at({"kvchat plain": (1,), "llama-server plain": (1, 1)})
    runs.append(run("p0", "llama-server x", reply(1)))
    runs.append(run("p1", "llama-server x", reply(1, tokens=tuple(range(1, 21)))))
    row = row_of(runs, "chat", "llama-server x")
    assert (row.n_same, row.n_replies) == (1, 2)


def test_the_plain_text_of_a_peer_is_compared_with_kvchats() -> None:
    runs = runs_at({"kvchat plain": (1, 1), "node-llama-cpp plain": (1,)})
    runs.append(run("p1", "node-llama-cpp plain", reply(1, tokens=(9, 9, 9))))
    row = row_of(runs, "chat", "node-llama-cpp plain")
    assert (row.n_same, row.n_replies) == (1, 2)


def test_acceptance_is_told_only_where_the_peer_tells_it() -> None:
    told = run("p", "llama-server x", reply(1, n_drafted=8, n_accepted=6, n_rounds=10))
    untold = run("p", "transformers x", reply(1))
    row = row_of([told, untold], "chat", "llama-server x")
    assert (row.acceptance, row.tokens_per_round) == (0.75, 2.0)
    assert row_of([told, untold], "chat", "transformers x").acceptance is None


def test_every_question_reaches_every_mode_and_slow_peers_get_the_first_ones() -> None:
    questions = [Question(name, str(n), "", (1,)) for name in ("a", "b") for n in range(5)]
    plan = list(planned(PEER_MODES, questions, pair=1, slow_prompts=2))
    assert len(plan) == len({(mode.key, q.set_name, q.name) for mode, q in plan})
    asked = {mode.key: [q for each, q in plan if each is mode] for mode in PEER_MODES}
    for mode in PEER_MODES:
        assert len(asked[mode.key]) == (4 if mode.peer == "transformers" else 10), mode.key


def test_no_mode_is_always_first() -> None:
    questions = [Question("a", str(n), "", (1,)) for n in range(len(PEER_MODES))]
    first = {}
    for mode, question in planned(PEER_MODES, questions, pair=0, slow_prompts=99):
        first.setdefault(question.name, mode.key)
    assert set(first.values()) == {mode.key for mode in PEER_MODES}


def test_modes_with_a_draft_need_one_and_kvchat_plain_is_never_skipped() -> None:
    def keys(*, has_draft: bool, skip: list[str]) -> list[str]:
        modes = chosen_modes(["draft:auto"], only=["llama-*"], skip=skip, has_draft=has_draft)
        return [mode.key for mode in modes]

    assert "llama-server draft-simple" in keys(has_draft=True, skip=[])
    without = keys(has_draft=False, skip=["*plain"])
    assert not [key for key in without if "draft" in key]
    assert without[0] == "kvchat plain"
    assert "llama-server plain" not in without


def test_a_files_runs_are_read_again_and_failed_ones_are_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert open_results(path, head()) == []
    good, bad = run("p", AUTO, reply(5)), Run(0, "chat", "p", 0.0, "llama-server x", error="no")
    append(path, good)
    append(path, bad)
    assert read_results(path)[1] == [good, bad]
    assert open_results(path, head()) == [good]
    assert read_results(path)[1] == [good]


def test_a_file_that_goes_on_with_other_modes_names_the_first_ones_too(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first, second = head(), head()
    first.peers["node-llama-cpp"] = {"node-llama-cpp": "3"}
    second.configurations = [{"key": "node-llama-cpp plain", "name": "plain", "settings": {}}]
    second.command = "peers.py more"
    for each in (first, second, second):
        open_results(path, each)
    kept = read_results(path)[0]
    assert [each["key"] for each in kept.configurations] == [
        *(each["key"] for each in first.configurations),
        "node-llama-cpp plain",
    ]
    assert kept.peers["node-llama-cpp"] == {"node-llama-cpp": "3"}
    assert kept.command == "peers.py m.gguf; peers.py more"


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    open_results(path, head())
    append(path, run("p", AUTO, reply(5)))
    with path.open("a") as file:
        file.write('{"pair": 0, "set_n')
    assert len(read_results(path)[1]) == 1


def test_a_file_of_other_settings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    open_results(path, head())
    with pytest.raises(PeerError, match="tokens 32, now 64"):
        open_results(path, head(tokens=64))


def test_what_llama_server_says_is_counted_behind_the_first_token() -> None:
    timings = {
        "cache_n": 3, "prompt_n": 7, "predicted_n": 11, "predicted_ms": 500.0, "draft_n": 8,
        "draft_n_accepted": 4,
    }  # fmt: skip
    made = reply_of({"tokens": [5, 6, 2], "timings": timings}, (2,), n_prompt=10)
    assert made.tokens == (5, 6)
    assert (made.n_steps, made.tokens_per_second, made.n_rounds) == (10, 20.0, 6)
    with pytest.raises(PeerError, match="read 10 tokens where it was sent 9"):
        reply_of({"tokens": [5], "timings": timings}, (2,), n_prompt=9)


def test_the_page_names_winner_verdict_refusals_and_command() -> None:
    runs = runs_at({"kvchat plain": (100,), AUTO: (132,), "llama-server plain": (110,)})
    page = speed_page.page_of([(head(), runs)], AUTO)
    assert "| chat | llama-server plain | 1.10 | 1.32 | **1.20** | 1.20 |" in page
    assert "| node-llama-cpp | did not run: not installed |" in page
    assert "| llama-server ngram-mod | no speed |" in page
    assert "- ngram-mod: `--spec-type ngram-mod`" in page
    assert "`peers.py m.gguf`" in page


def test_the_page_tells_no_folders_of_the_machine() -> None:
    failed = Run(0, "chat", "p0", 0.0, "llama-server x", error="cannot open '/home/me/m.gguf': no")
    made = head()
    made.configurations.append({"key": "llama-server x", "name": "x", "settings": {}})
    page = speed_page.page_of([(made, [*runs_at({"kvchat plain": (100,)}), failed])], AUTO)
    assert "- llama-server x: cannot open 'm.gguf': no" in page


def test_a_page_without_a_verdict_has_empty_cells() -> None:
    page = speed_page.page_of([(head(), runs_at({"kvchat plain": (100,)}))], AUTO)
    assert "| chat | no speeds yet | | | | |" in page
    assert "| geometric mean | | | |  |  |" in page


def test_modes_have_names_of_their_own() -> None:
    keys = [mode.key for mode in (*PEER_MODES, Mode("kvchat", "plain"))]
    assert len(set(keys)) == len(keys)
