"""The verdict in one sentence."""

from dataclasses import replace

from engine.configuration import KVTypes
from engine.policy.explain import explain, sentence
from engine.policy.known import Known
from engine.quality.records import Breakdown, Figure, Report, Scores
from tests.engine.policy.reports import Q4, Q8, WHOLE, measured, report, scores

MIXED = KVTypes("q8_0", "q5_1")


def losing(nats: float, noise: float = 0.0) -> Scores:
    return replace(scores(), nll_delta=Figure(nats, nats - noise, nats + noise))


def mixed_report(**losses: Scores) -> Report:
    parts = tuple(Breakdown(name, loss) for name, loss in losses.items())
    row = replace(measured(MIXED), by_text=parts, scores=scores(0.002, same_top=0.9963))
    found = report()
    return replace(found, measurements=(*found.measurements, row))


def said(found: Report, pair: KVTypes = MIXED) -> str:
    return sentence(found, pair)


def test_the_sentence_has_size_likeliest_token_and_the_loss_on_each_sort_of_text() -> None:
    found = mixed_report(chat=losing(0.0), document=losing(0.0042, 0.001))
    assert said(found) == (
        "q8_0 K with q5_1 V: 2.2x smaller, same top token 99.6 %, nothing measurable on chat, "
        "0.004 nats on long documents"
    )


def test_a_loss_within_the_noise_of_the_control_is_nothing_measurable() -> None:
    found = mixed_report(chat=losing(0.0042, 0.001), tools=losing(0.05, 0.001))
    control = found.control
    assert control is not None
    noisy = replace(control, by_text=(Breakdown("chat", losing(0.005)),))
    rows = tuple(noisy if each is control else each for each in found.measurements)
    assert "nothing measurable on chat, 0.050 nats on tool calls" in said(
        replace(found, measurements=rows)
    )


def test_types_are_explained_by_figures_by_what_keeps_smaller_ones_out_or_as_a_guess() -> None:
    good = Known(report({Q8: 0.001}, {Q8: 60.0}), has_rates=True)
    assert explain(good, Q8).startswith("q8_0: 1.9x smaller")
    assert explain(good, WHOLE) == (
        "f16, though q8_0 would keep the gates, too: 40 tokens/s, 48 with q8_0"
    )
    bad = explain(Known(report({Q8: 0.4})), WHOLE)
    assert bad.startswith("f16, because no smaller type keeps the gates (q8_0: ")
    assert explain(Known(), Q8).startswith("q8_0; nothing was measured on this model")
    assert explain(good, Q4) == "q4_0: not among the 2 kinds that were measured"
    few = explain(Known(report({Q8: 0.0}, n_tokens=10)), Q8)
    assert few.endswith("10 tokens of 8,000: no verdict")
