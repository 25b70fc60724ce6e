"""Stores a part of an accuracy run as a test: llama.cpp's answers for catalogue models.

../.venv/bin/python accuracy.py ... --out rows.jsonl
../.venv/bin/python record_dry_runs.py rows.jsonl ../tests/engine/memory/dry_runs.json
"""

import json
import sys
from pathlib import Path

CASES = ("4k", "5000 3 slots", "32k off ub2048 4u", "32k q8_0", "128k q8_0 ub2048 4u")
CONTEXT_FIELDS = (
    "n_ctx", "n_batch", "n_ubatch", "n_slots", "n_rows", "type_k", "type_v", "flash_attention",
    "kv_unified", "swa_full",
)  # fmt: skip


def record(row: dict[str, object]) -> list[object] | None:
    """Model, context and bytes: cache and state together, weights, graph."""
    truth, request = row.get("truth"), row["request"]
    assert isinstance(request, dict)
    if not isinstance(truth, dict) or "buffers" not in truth or row["case"] not in CASES:
        return None
    parts = truth["buffers"].values()
    sums = [sum(part[name] for part in parts) for name in ("context", "model", "compute")]
    settings = {**request["configuration"], "n_rows": request["n_rows"]}
    context = [settings[name] for name in CONTEXT_FIELDS]
    return [str(row["model"]).removesuffix(".Q4_K_M"), context, *sums]


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    found = [
        item for row in rows if str(row["model"]).endswith(".Q4_K_M") and (item := record(row))
    ]
    found.sort(key=lambda item: str(item[0]))
    lines = ",\n".join(json.dumps(item, separators=(",", ":")) for item in found)
    target.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{len(found)} dry runs of {len({item[0] for item in found})} models")


if __name__ == "__main__":
    main()
