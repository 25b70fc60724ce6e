"""The verdict in one sentence."""

from dataclasses import replace

import pytest

from engine.configuration import KVTypes
from engine.policy.explain import explain, sentence
from engine.policy.known import Known
from engine.quality.records import Answers, Breakdown, Figure, Measurement, Report, Scores
from tests.engine.policy.reports import Q4, Q8, WHOLE, measured, report, scores

MIXED = KVTypes("q8_0", "q5_1")


def losing(nats: float, noise: float = 0.0) -> Scores:
    return replace(scores(), nll_delta=Figure(nats, nats - noise, nats + noise))


def mixed_report(**losses: Scores) -> Report:
    parts = tuple(Breakdown(name, loss) for name, loss in losses.items())
    row = replace(measured(MIXED), by_text=parts, scores=scores(0.002, same_top=0.9963))
    found = report()
    return replace(found, measurements=(*found.measurements, row))


def explained(found: Report, pair: KVTypes = MIXED) -> str:
    return sentence(found, pair)


def test_the_sentence_has_size_likeliest_token_and_the_loss_on_each_sort_of_text() -> None:
    found = mixed_report(chat=losing(0.0), document=losing(0.0042, 0.001))
    assert explained(found) == (
        "q8_0 K with q5_1 V: 2.2x smaller, same top token 99.6 %, no measurable loss on chat, "
        "0.004 nats on long documents"
    )


def test_a_loss_within_the_noise_of_the_control_is_nothing_measurable() -> None:
    found = mixed_report(chat=losing(0.0042, 0.001), tools=losing(0.05, 0.001))
    control = found.control
    assert control is not None
    noisy = replace(control, by_text=(Breakdown("chat", losing(0.005)),))
    rows = tuple(noisy if each is control else each for each in found.measurements)
    assert "no measurable loss on chat, 0.050 nats on tool calls" in explained(
        replace(found, measurements=rows)
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (measured(KVTypes("f16", "bf16")), "f16 K with bf16 V: same size, same top"),
        (measured(KVTypes("f32", "f32")), "f32: 2.0x larger"),
        (measured(Q8, tps=None), "q8_0: 1.9x smaller"),
        (replace(measured(Q8), scores=scores(same_top=0.9999)), "same top token 99.9 %"),
        (replace(measured(Q8), needle=(Answers("50 %", 7, 10),)), "3 of 10 needles"),
        (replace(measured(Q8), is_complete=False), "measurement incomplete"),
        (replace(measured(Q8), by_text=(), scores=losing(0.25)), "0.250 nats"),
    ],
)
def test_each_weakness_is_part_of_the_sentence(row: Measurement, words: str) -> None:
    found = report()
    shown = explained(replace(found, measurements=(*found.measurements, row)), row.kind)
    assert words in shown


@pytest.mark.parametrize(
    ("known", "pair", "words"),
    [
        (Known(), Q8, "q8_0, not measured on this model"),
        (Known(has_key_biases=True), Q8, "MODEL` measures it); "),
        (Known(report({Q8: 0.002})), WHOLE, "f16, although q8_0 would pass"),
        (Known(report({Q8: 0.002})), Q4, "not among the 2 measured types"),
        (Known(report({Q8: 0.002}, n_tokens=10)), Q8, "q8_0: "),
        (Known(report({Q8: 0.002})), Q8, "q8_0: 1.9x smaller, same top token 99.6 %"),
    ],
)
def test_why_a_cache_has_its_types(known: Known, pair: KVTypes, words: str) -> None:
    assert words in explain(known, pair)


def test_the_reference_and_what_was_not_measured_have_no_figures() -> None:
    assert explained(report(), WHOLE) == "f16: the reference type"
    assert explained(report()) == "q8_0 K with q5_1 V was not measured"
