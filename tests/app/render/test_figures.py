"""Every figure of the cockpit, of a reply and of the verdicts, where little or nothing is known."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from app.chat.entries import ending_of
from app.chat.meters import Meters
from app.cli.replies import summary
from app.format import NO_VALUE
from app.render.compare import figure_lines, verdict_lines
from app.render.lines import plain
from app.render.panels import cache_lines, memory_lines, speculation_lines, throughput_lines
from app.render.reply_stats import reply_stats_text
from app.render.status import status_line
from app.store.records import StoredMessage
from engine.cache.report import CacheCounts, CacheReport
from engine.events import (
    CacheChanged,
    Finished,
    FinishReason,
    GenerationStats,
    PositionCounts,
    PromptReady,
    RoundFinished,
    SourceCounts,
    TiersChanged,
    WorkerStopped,
)
from engine.experiment.arm import PLAIN as NO_DRAFTS
from engine.experiment.comparison import Comparison
from engine.experiment.runner import ArmReply
from engine.speculation.costs import PlainStep
from engine.speculation.stats import TimeSaved
from tests.app.render.test_compare import LOOKUP, compared
from tests.support.fakes_client import CONFIGURATION, loaded

WIDTHS = (33, 44, 76)
PLAIN_S = 0.1
NOISE = (0.1, 0.05, 0.16, 0.09, 0.3, 0.1, 0.06, 0.1, 0.18)
"""Plain steps of a machine that others use, in seconds."""


@dataclass(frozen=True)
class Drafted:
    """A round: what was verified and accepted of a draft, and its time in plain steps."""

    n_verified: int = 0
    n_accepted: int = 0
    steps: float = 1.0


PLAIN = Drafted()
REFUTED = Drafted(1, 0, 1.6)
ACCEPTED = Drafted(1, 1, 1.6)
MANY = [Drafted(4, 4, 2.0)] * 30


class Chat:
    """Meters that are fed as a worker feeds them, and the last reply."""

    def __init__(self, steps: Sequence[float] = NOISE) -> None:
        self.meters = Meters(lambda: 10.0)
        self.finished: Finished | None = None
        self.step = PlainStep()
        self._steps = steps
        self.prompt: PromptReady | None = None
        self._found = PromptReady(79, n_hot=78, elapsed_s=0.2)

    def load(self) -> "Chat":
        self.meters.start_load(CONFIGURATION)
        self.meters.feed(loaded(CONFIGURATION))
        self.step = PlainStep()
        for seconds in self._steps:
            self.step.add(seconds)
        return self

    def answer(self, rounds: Sequence[Drafted], reason: FinishReason = FinishReason.END) -> "Chat":
        """Feed the events of a reply; one that was stopped before a round has no prefill either."""
        self.meters.start_reply()
        stats = GenerationStats(n_prompt=79, n_reused=78, prefill_s=0.2 if rounds else 0.0)
        if rounds:
            self.prompt = self._found
            self.meters.feed(self.prompt)
            stats = replace(stats, first_token_s=0.3)
        saved = TimeSaved()
        done = [self._round(saved, drafted) for drafted in rounds]
        for each in done:
            self.meters.feed(each)
        summed = stats.with_rounds(done)
        self.finished = Finished(reason, "text", (1,) * summed.n_emitted, "v", 1, summed)
        self.meters.feed(self.finished)
        return self

    def restore(self, counts: CacheCounts, *, n_warm: int = 0, n_cold: int = 0) -> "Chat":
        """Report where the prompt of the reply came from."""
        self.meters.feed(CacheChanged(90, 8192, 180 << 20))
        self._found = replace(self._found, n_hot=0, n_warm=n_warm, n_cold=n_cold, restore_s=0.04)
        self.meters.feed(TiersChanged(CacheReport(counts=counts)))
        return self

    def restart(self) -> "Chat":
        self.meters.feed(WorkerStopped("The engine stopped", "signal 9", -9))
        return self.load()

    def _round(self, saved: TimeSaved, drafted: Drafted) -> RoundFinished:
        elapsed_s, n_emitted = drafted.steps * PLAIN_S, drafted.n_accepted + 1
        saved.add(
            self.step,
            n_verified=drafted.n_verified,
            n_emitted=n_emitted,
            draft_s=0.001,
            elapsed_s=elapsed_s,
        )
        return RoundFinished(
            n_drafted=drafted.n_verified,
            n_verified=drafted.n_verified,
            n_examined=min(drafted.n_accepted + 1, drafted.n_verified),
            n_accepted=drafted.n_accepted,
            n_emitted=n_emitted,
            source="suffix" if drafted.n_verified else None,
            length=drafted.n_verified,
            next_length=5,
            reason="auto: 5 drafted should give 2.1 tokens for 1.9 steps",
            draft_s=0.001,
            verify_s=elapsed_s,
            elapsed_s=elapsed_s,
            plain_step_s=self.step.seconds,
            plain_spread=self.step.spread,
            saved_s=saved.seconds,
            saved_error_s=saved.error_s,
            verdicts=tuple(n < drafted.n_accepted for n in range(drafted.n_verified)),
        )


FROM_MEMORY = CacheCounts(n_hits=1, n_warm_tokens=78, n_computed_tokens=1)
FROM_DISK = CacheCounts(n_hits=1, n_cold_tokens=78, n_computed_tokens=1)
SLOW = [replace(PLAIN, steps=9.0)] * 48
STATES: dict[str, Callable[[], Chat]] = {
    "nothing loaded": Chat,
    "nothing asked": lambda: Chat().load(),
    "no plain step yet": lambda: Chat(()).load().answer([ACCEPTED, REFUTED]),
    "zero drafts": lambda: Chat().load().answer([PLAIN] * 12),
    "zero drafts on a slower machine": lambda: Chat().load().answer(SLOW),
    "one draft refuted": lambda: Chat().load().answer([*SLOW, REFUTED]),
    "one draft accepted": lambda: Chat().load().answer([*SLOW, ACCEPTED]),
    "one draft, much too fast": lambda: Chat().load().answer([PLAIN, replace(ACCEPTED, steps=0.1)]),
    "restored warm": lambda: Chat().load().restore(FROM_MEMORY, n_warm=78).answer([PLAIN]),
    "restored cold": lambda: Chat().load().restore(FROM_DISK, n_cold=78).answer([PLAIN]),
    "stopped before a token": lambda: Chat().load().answer([], FinishReason.CANCELLED),
    "stopped": lambda: Chat().load().answer([PLAIN, REFUTED, PLAIN], FinishReason.CANCELLED),
    "second reply after a restart": lambda: Chat().load().answer(MANY).restart().answer([PLAIN]),
}  # fmt: skip


def known() -> Chat:
    return Chat([PLAIN_S] * 9).load().answer(MANY)


def message(finished: Finished) -> StoredMessage:
    return StoredMessage(
        1, 1, None, "assistant", "text", None, None, "m", 1, finished.reason,
        finished.stats.figures(), 0.0, predictor="suffix", controller="auto",
    )  # fmt: skip


def panels(chat: Chat) -> str:
    """Everything that the cockpit shows, in every width."""
    snapshot = replace(chat.meters.snapshot(), prompt=chat.prompt)
    renders = (speculation_lines, throughput_lines, cache_lines, memory_lines)
    lines = [line for width in WIDTHS for render in renders for line in render(snapshot, width)]
    return "\n".join(map(plain, [*lines, status_line(snapshot, 80), status_line(snapshot, 160)]))


def of_the_reply(chat: Chat) -> str:
    if chat.finished is None:
        return ""
    saved = message(chat.finished)
    return f"{ending_of(saved)}\n{reply_stats_text(saved)}"


def rows(text: str, label: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(label)]


@pytest.mark.parametrize("name", STATES)
def test_no_figure_claims_what_is_not_known(name: str) -> None:
    chat = STATES[name]()
    shown, of_reply = panels(chat), of_the_reply(chat)
    reply = chat.meters.snapshot().reply

    assert all(re.search(rf"{NO_VALUE} +{NO_VALUE}", row) for row in rows(shown, "time saved"))
    assert not re.search(r"\d(\.\d+)?x\b", shown + of_reply), "no speed-up of so few drafts"
    assert " lost" not in shown + of_reply
    if not reply.n_verified:
        assert not re.search(r"accept +\d|\d+/\d+ \d+%", shown + of_reply)
    few = reply.n_verified and reply.n_verified < 20
    assert not (few and re.search(r"accept +\d+%|\d/\d+ +\d+%", shown)), "few tokens are a count"
    assert not re.search(r"(?<!varies by )\b\d+%(?! of \d)", of_reply), "a percentage has its count"
    if not reply.n_rounds:
        assert not re.search(r"(validated|refuted|tokens/round|decode|first token) +0", shown)
        assert "0.00 s" not in shown + of_reply
    assert "nan" not in (shown + of_reply).lower()


@pytest.mark.parametrize("name", STATES)
def test_json_has_null_where_nothing_was_compared(name: str) -> None:
    finished = STATES[name]().finished
    if finished is None:
        return
    summed = summary(finished, None)
    saved_s, error_s, speedup = (summed[key] for key in ("saved_s", "saved_error_s", "speedup"))
    if not summed["n_verified"] or summed["plain_spread"] is None:
        assert (saved_s, error_s, speedup) == (None, None, None)
        return
    assert isinstance(saved_s, float)
    assert isinstance(error_s, float)
    assert abs(saved_s) <= error_s, "one draft is no gain and no loss"
    assert speedup <= summed["tokens_per_round"]  # type: ignore[operator]


@pytest.mark.parametrize("name", STATES)
def test_no_verdict_is_for_or_against_drafts_that_were_hardly_made(name: str) -> None:
    chat = STATES[name]()
    if chat.finished is None or not chat.finished.stats.n_emitted:
        return
    comparison = beside_plain(chat.finished)
    of_reply = " ".join(map(plain, verdict_lines(comparison, 200)))
    assert comparison.gain is not None
    assert comparison.gain.median <= (chat.finished.stats.tokens_per_round or 1.0) + 0.01
    if not chat.finished.stats.n_verified:
        assert "neither side drafted" in of_reply


def beside_plain(finished: Finished) -> Comparison:
    """Give a comparison of that reply with a plain one of half its speed."""
    plainly = Chat().load().answer([PLAIN] * (finished.stats.n_emitted or 0)).finished
    assert plainly is not None
    made = []
    for arm, end, tps in ((NO_DRAFTS, plainly, 50.0), (LOOKUP, finished, 100.0)):
        made.append(ArmReply(arm))
        n_emitted = end.stats.n_emitted or 0
        stats = replace(end.stats, decode_tps=tps, decode_s=n_emitted / tps)
        made[-1].handle(replace(end, stats=stats))
        assert "None" not in "".join(map(plain, figure_lines(made[-1], 60)))
    first, second = made
    return compared(*[(first, second, second, first)] * 6)


def test_what_is_known_is_shown_without_a_doubt() -> None:
    chat = known()
    shown, of_reply = panels(chat), of_the_reply(chat)
    assert all("+9.0 s" in row for row in rows(shown, "time saved"))
    assert "2.5x · accept 100%" in shown
    assert "2.5x over 100.0 ms per step without drafts: 9.0 s ± 0.30 s saved" in of_reply
    assert "noisy" not in shown
    assert "~" not in shown + of_reply


def test_the_same_on_a_noisy_machine_is_marked() -> None:
    chat = Chat([0.1, 0.11, 0.07, 0.13, 0.1] * 3).load().answer(MANY)
    shown, of_reply = panels(chat), of_the_reply(chat)
    assert all("~+9.0 s" in row for row in rows(shown, "time saved"))
    assert "noisy ±30%" in shown
    assert "~2.5x · accept 100%" in shown
    assert "which varies by 30%" in of_reply


def test_a_session_counts_what_replies_with_drafts_saved() -> None:
    chat = known().answer([replace(PLAIN, steps=9.0)] * 48).answer([PLAIN] * 12)
    assert all(re.search(rf"{NO_VALUE} +\+9.0 s", row) for row in rows(panels(chat), "time saved"))


DRAFTED = GenerationStats(
    n_prompt=1163, n_reused=1104, n_rounds=100, n_drafted=200, n_verified=180, n_examined=150,
    n_accepted=120, n_emitted=230, by_source={"lookup": SourceCounts(200, 180, 150, 120, 90)},
    by_position=(PositionCounts(3, 2), PositionCounts(60, 45)), prefill_s=0.4,
    first_token_s=0.5, decode_s=3.0, decode_tps=76.7, plain_step_s=0.02, plain_spread=0.03,
    saved_s=1.6, saved_error_s=0.1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "m · seed 1 · drafts by suffix · length auto"),
        ({}, "230 tokens in 3.0 s, 77 tok/s, first token after 0.50 s"),
        ({"decode_tps": None, "first_token_s": None}, "230 tokens in 3.0 s\n"),
        ({"n_emitted": 0}, "ended before its first token"),
        ({}, "prompt of 1,163 tokens, 1,104 of them reused, prefilled in 0.40 s"),
        ({"n_reused": 0, "prefill_s": 0.0}, "prompt of 1,163 tokens\n"),
        (
            {},
            "drafted 200, verified 180, examined 150, accepted 120, refuted 60; 100 rounds of 2.30",
        ),
        ({}, "over 20.0 ms per step without drafts: 1.6 s ± 0.10 s saved"),
        ({"saved_s": -1.6}, "1.6 s ± 0.10 s lost"),
        (
            {"saved_s": 0.05},
            "no clear gain or loss over 20.0 ms per step without drafts: the noise",
        ),
        ({"plain_spread": 0.3}, "without drafts, which varies by 30%"),
        ({}, "accepted by source: lookup 67% of 180"),
        ({}, "acceptance by position in the draft: 1: 2 of 3 · 2: 75% of 60"),
    ],
)
def test_the_statistics_of_a_reply_have_every_figure(
    changes: dict[str, float | None], words: str
) -> None:
    stats = replace(DRAFTED, **changes)  # type: ignore[arg-type]
    saved = message(Finished(FinishReason.END, "text", (1,), "v", 1, stats))
    assert words in f"{reply_stats_text(saved)}\n"
    assert reply_stats_text(replace(saved, stats=None)) is None
    assert "no drafts" in str(reply_stats_text(replace(saved, predictor="off")))
