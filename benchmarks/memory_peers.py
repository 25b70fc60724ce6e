"""What other estimators say on the same files and configurations, beside kvchat.

    ../.venv/bin/python memory_peers.py rows.jsonl --gguf-parser BINARY --oldiron PYTHON
        --out peers.jsonl

`rows.jsonl` is what `accuracy.py` wrote; `--oldiron` is the Python of an environment with it. Only
what an estimator can express is asked: gguf-parser knows no unified cache, oldiron no slots and no
attention without flash. Overheads of driver and process are left out on all sides.
"""

import argparse
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Row = dict[str, object]

OLDIRON = """
import json, sys
from oldiron.gguf_meta import read_gguf
from oldiron.memory import plan
path = model = None
for line in sys.stdin:
    asked = json.loads(line)
    try:
        if asked["path"] != path:
            path, model = asked["path"], read_gguf(asked["path"])
        found = plan(model, 0, asked["n_ctx"], asked["type_k"], asked["type_v"], asked["n_ubatch"],
                     gpu_layers=asked["n_layers"])
        answer = found.weights + found.kv_cache + found.compute
    except Exception as error:
        answer = str(error) or type(error).__name__
    print(json.dumps(answer), flush=True)
"""


@dataclass
class Oldiron:
    """PyPI's oldiron, asked in a process of its own environment."""

    process: "subprocess.Popen[str]"

    @classmethod
    def started(cls, python: Path) -> "Oldiron":
        """Start it."""
        command = (str(python), "-c", OLDIRON)
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))

    def ask(self, row: Row) -> int | str | None:
        """Bytes, or why there are none; None where it cannot express the case."""
        asked = request_of(row)
        if asked["n_slots"] != 1 or asked["flash_attention"] == "off" or asked["swa_full"]:
            return None
        if not asked["offload_kqv"]:
            return None
        n_layers = asked["n_gpu_layers"]
        question = {
            "path": row["path"],
            "n_ctx": asked["n_ctx"],
            "type_k": asked["type_k"],
            "type_v": asked["type_v"],
            "n_ubatch": asked["n_ubatch"],
            "n_layers": None if n_layers == -1 else n_layers,
        }
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer if isinstance(answer, int | str) else None


@dataclass
class GgufParser:
    """The program gguf-parser."""

    binary: Path

    def ask(self, row: Row) -> int | str | None:
        """Bytes, or why there are none; None where it cannot express the case."""
        asked = request_of(row)
        if asked["kv_unified"]:
            return None
        n_layers = 0 if not row["n_gpus"] else asked["n_gpu_layers"]
        attention = (
            "--no-flash-attention" if asked["flash_attention"] == "off" else "--flash-attention"
        )
        command = [
            str(self.binary), "--path", str(row["path"]), "--json", "--estimate", "--no-mmap",
            "--skip-tokenizer", "--skip-metadata", "--skip-architecture",
            "--platform-footprint", "0,0", attention,
            "--ctx-size", str(asked["n_ctx"]), "--gpu-layers", str(n_layers),
            "--cache-type-k", str(asked["type_k"]), "--cache-type-v", str(asked["type_v"]),
            "--batch-size", str(asked["n_batch"]), "--ubatch-size", str(asked["n_ubatch"]),
            "--parallel-size", str(asked["n_slots"]),
            *(["--swa-full"] if asked["swa_full"] else []),
            *([] if asked["offload_kqv"] else ["--no-kv-offload"]),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            [item] = json.loads(done.stdout)["estimate"]["items"]
        except (ValueError, KeyError):
            return (done.stderr or done.stdout).strip().splitlines()[-1:][0][:200]
        if row["n_gpus"]:
            return int(item["vrams"][0]["nonuma"])
        return int(item["ram"]["uma"]) + sum(int(part["uma"]) for part in item["vrams"])


def is_comparable(row: Row) -> bool:
    """Whether both sides have figures, and no placement by tensor or on several GPUs is asked."""
    if "truth" not in row or any("error" in part_of(row, side) for side in ("formula", "truth")):
        return False
    asked = request_of(row)
    return row["n_gpus"] in (0, 1) and not asked["n_cpu_moe"] and not asked["tensor_overrides"]


def part_of(row: Row, name: str) -> Row:
    """One side of a row."""
    part = row[name]
    assert isinstance(part, dict)
    return part


def request_of(row: Row) -> Row:
    """The configuration that llama.cpp was asked about."""
    return part_of(part_of(row, "request"), "configuration")


def answers(
    rows: list[Row], known: list[Row], peers: dict[str, Callable[[Row], object]]
) -> Iterator[Row]:
    """Ask every estimator about every row that it was not yet asked about."""
    before = {row["key"]: part_of(row, "peers") for row in known}
    for row in filter(is_comparable, rows):
        found = dict(before.get(row["key"], {}))
        for name, ask in peers.items():
            if name not in found:
                found[name] = ask(row)
        yield {"key": row["key"], "peers": found}


def read_rows(path: Path) -> list[Row]:
    """Read JSON lines; none where there is no file yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Ask, and write the answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--gguf-parser", type=Path)
    parser.add_argument("--oldiron", type=Path)
    parser.add_argument("--out", type=Path, default=Path("peers.jsonl"))
    options = parser.parse_args()
    peers: dict[str, Callable[[Row], object]] = {}
    if options.gguf_parser:
        peers["gguf-parser"] = GgufParser(options.gguf_parser).ask
    if options.oldiron:
        peers["oldiron"] = Oldiron.started(options.oldiron).ask
    found = answers(read_rows(options.rows), read_rows(options.out), peers)
    fresh = options.out.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in found)
    fresh.replace(options.out)


if __name__ == "__main__":
    main()
