"""The verdict in one sentence."""

from dataclasses import replace

from engine.configuration import KVTypes
from engine.policy.explain import sentence
from engine.quality.records import Breakdown, Figure, Report, Scores
from tests.engine.policy.reports import measured, report, scores

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
