from dataclasses import replace

from engine.quality.records import CacheKind, Figure, Measurement, Part
from engine.quality.verdict import sentence, size_ratio
from tests.engine.quality.made_reports import F16, Q8, made_measurement, made_report, made_scores


def row(kind: CacheKind, **losses: float) -> Measurement:
    parts = tuple(
        Part(
            name,
            replace(made_scores(0.001), nll_delta=Figure(loss, loss - 0.002, loss + 0.002)),
        )
        for name, loss in losses.items()
    )
    return replace(made_measurement(kind, 0.004), by_text=parts)


def test_a_sentence_says_size_top_token_and_losses_by_text() -> None:
    kind = CacheKind("q8_0", "q5_1")
    said = sentence(row(kind, chat=0.0005, document=0.004), made_report())
    assert said == (
        "q8_0 K with q5_1 V: 2.0x smaller, same top token 99.6 %, nothing measurable on chat, "
        "0.004 nats on long documents"
    )


def test_texts_without_a_loss_are_named_together() -> None:
    said = sentence(row(Q8, chat=0.0, code=-0.01, tools=0.0), made_report())
    assert "nothing measurable on chat, code and tool calls" in said


def test_a_loss_within_the_noise_of_the_control_is_none() -> None:
    noisy = replace(row(F16, chat=0.02), role="control")
    report = made_report(row(Q8, chat=0.01))
    with_noise = replace(
        report, measurements=(report.measurements[0], noisy, *report.measurements[2:])
    )
    assert "0.010 nats on chat" in sentence(report.candidates[0], report)
    assert "nothing measurable on chat" in sentence(report.candidates[0], with_noise)


def test_lost_answers_are_told() -> None:
    report = made_report(made_measurement(Q8, 0.001))
    first = report.reference
    assert first is not None
    answers = tuple(replace(each, n_right=1) for each in first.needle)
    said = sentence(replace(report.candidates[0], needle=answers), report)
    assert said.endswith("2 of 8 needles instead of 7")


def test_a_size_that_was_not_measured_is_not_told() -> None:
    report = made_report()
    bare = replace(report.candidates[0], cost=None)
    assert size_ratio(bare, report) is None
    assert "smaller" not in sentence(bare, report)
