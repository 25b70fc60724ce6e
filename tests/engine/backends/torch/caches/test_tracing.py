import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from engine.backends.torch.caches.base import CacheConfig, LayerShape, held_bytes  # noqa: E402
from engine.backends.torch.caches.kinds import make_caches  # noqa: E402
from engine.backends.torch.caches.tracing import CacheTrace, TracingCache  # noqa: E402
from engine.errors import CropUnsupportedError  # noqa: E402
from engine.memory.torch_caches import KindName  # noqa: E402
from tests.support.torch_device import DEVICE  # noqa: E402

CONFIG = CacheConfig(64, torch.float32, DEVICE)


def test_each_operation_is_a_line_of_json(tmp_path: Path) -> None:
    trace = CacheTrace(tmp_path / "trace.jsonl")
    plain = make_caches(KindName("q8_0", "f16"), [LayerShape(2, 32, 32)] * 2, CONFIG)
    caches = [TracingCache(each, layer, trace, sequence=3) for layer, each in enumerate(plain)]
    rows = torch.zeros(1, 2, 5, 32)
    for cache in caches:
        cache.update(rows, rows)
    caches[1].crop(3)
    caches[0].state()
    caches[0].hold(caches[0].held(), 5)
    with pytest.raises(CropUnsupportedError):
        caches[1].crop(99)
    trace.close()
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert [(each["name"], each["layer"], each["length"]) for each in lines] == [
        ("update", 0, 5), ("update", 1, 5), ("crop", 1, 3), ("state", 0, 5), ("save", 0, 5),
        ("load", 0, 5), ("crop", 1, 3),
    ]  # fmt: skip
    assert lines[0]["shape"] == lines[3]["shape"] == [1, 2, 5, 32]
    assert lines[2]["shape"] == [3]
    assert all(each["nbytes"] == held_bytes(plain[:1]) for each in lines)
    assert {each["sequence"] for each in lines} == {3}
    assert all(0 <= each["elapsed_s"] < 60 for each in lines)
