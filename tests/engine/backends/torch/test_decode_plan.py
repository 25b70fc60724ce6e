import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from engine.backends.torch.decode_plan import AUTO, DecodePlan, chunks, parse_plan  # noqa: E402
from engine.backends.torch.model import attend_split  # noqa: E402


def spans(plan: DecodePlan, start: int, n_queries: int) -> list[tuple[int, int, int | None]]:
    return [
        (start + rows.start, start + rows.stop, window)
        for rows, window in chunks(plan, start, n_queries)
    ]


def test_queries_go_in_chunks_of_the_named_size() -> None:
    assert spans(parse_plan("128"), 5, 300) == [
        (5, 133, None), (133, 261, None), (261, 305, None),
    ]  # fmt: skip
    assert spans(parse_plan("128/512"), 0, 1) == [(0, 1, 512)]


def test_auto_goes_by_the_position_and_no_chunk_stands_in_two_buckets() -> None:
    plan = parse_plan("auto")
    assert plan == AUTO
    found = spans(plan, 300, 2000)
    assert found[0] == (300, 512, None)
    assert found[1] == (512, 768, None)
    assert [each for each in found if each[2]] == [(2048, 2176, 512), (2176, 2300, 512)]
    assert [end for _, end, _ in found[:-1]] == [start for start, _, _ in found[1:]]


def test_attention_split_over_the_keys_equals_that_of_torch() -> None:
    draws = torch.Generator().manual_seed(0)
    rows, keys, values = (torch.randn(2, 3, n, 16, generator=draws) for n in (4, 9, 9))
    mask = torch.arange(9) <= torch.arange(5, 9)[:, None]
    for seen in (None, mask):
        expected = scaled_dot_product_attention(rows, keys, values, seen, scale=0.3)
        assert torch.allclose(attend_split(rows, keys, values, seen, 0.3), expected, atol=1e-5)
