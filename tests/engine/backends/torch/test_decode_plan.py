import pytest

pytest.importorskip("torch")

from engine.backends.torch.decode_plan import AUTO, DecodePlan


def spans(plan: DecodePlan, start: int, n_queries: int) -> list[tuple[int, int, int | None]]:
    return [
        (start + rows.start, start + rows.stop, window)
        for rows, window in plan.chunks(start, n_queries)
    ]


def test_queries_go_in_chunks_of_the_named_size() -> None:
    assert spans(DecodePlan.parse("128"), 5, 300) == [
        (5, 133, None), (133, 261, None), (261, 305, None),
    ]  # fmt: skip
    assert spans(DecodePlan.parse("128/512"), 0, 1) == [(0, 1, 512)]


def test_auto_goes_by_the_position_and_no_chunk_stands_in_two_buckets() -> None:
    plan = DecodePlan.parse("auto")
    assert plan.buckets == AUTO
    found = spans(plan, 300, 2000)
    assert found[0] == (300, 512, None)
    assert found[1] == (512, 768, None)
    assert [each for each in found if each[2]] == [(2048, 2176, 512), (2176, 2300, 512)]
    assert [end for _, end, _ in found[:-1]] == [start for start, _, _ in found[1:]]
