"""How far kvchat's formulas are from llama.cpp's own dry run.

The formulas are computed in this process, which never imports llama_cpp; llama.cpp's figures come
from a process of their own. Models are GGUF headers without data (`accuracy_models.py`).

    .venv/bin/python benchmarks/accuracy.py FOLDER --out rows.jsonl --docs docs/accuracy.md
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from accuracy_cases import Case, cases
from accuracy_report import write_report, write_worst

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.memory.dry_run import request_of
from engine.memory.estimate import DeviceEstimate, TermKind, estimate
from engine.memory.hardware import Device
from engine.model.architecture import Model, read_model

GIB = 1024**3
CPU = Device("CPU", "cpu", 4096 * GIB, 4096 * GIB)
STATE_LIMIT_BYTES = 2 * GIB
"""Recurrent state is really allocated in a dry run; larger ones are left out and said."""
TRUTH = (sys.executable, str(Path(__file__).with_name("accuracy_truth.py")))
TRUTH_VERSION = crc32(Path(TRUTH[1]).read_bytes())

Answer = dict[str, object]


@dataclass
class Truth:
    """llama.cpp's figures, from a process that keeps the model of the last question open."""

    known: dict[str, Answer] = field(default_factory=dict)
    process: "subprocess.Popen[str] | None" = None

    def ask(self, key: str, request: Answer) -> Answer:
        """Give the figures of a request, from an earlier run where they are known."""
        if key not in self.known:
            self.known[key] = self._ask(json.dumps(request))
        return self.known[key]

    def _ask(self, line: str) -> Answer:
        if self.process is None:
            self.process = subprocess.Popen(
                TRUTH, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True,
            )  # fmt: skip
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if answer:
            return dict(json.loads(answer))
        code, self.process = self.process.wait(), None
        return {"error": f"llama.cpp ended with code {code}"}


def main() -> None:
    """Compare every model of a folder, and write rows and report."""
    options = _options()
    truth = Truth(_known(options.out))
    rows = []
    with options.out.with_suffix(".new").open("w", encoding="utf-8") as file:
        for path in _models(options.models):
            for row in rows_of(path, truth):
                rows.append(row)
                file.write(json.dumps(row) + "\n")
    options.out.with_suffix(".new").replace(options.out)
    assert "llama_cpp" not in sys.modules, "the formulas were not computed alone"
    if options.worst:
        write_worst(rows, options.worst)
    if options.docs:
        write_report(rows, options.docs)


def rows_of(path: Path, truth: Truth) -> Iterator[Answer]:
    """Give a row for each case of a model: what the formulas say, and what llama.cpp says."""
    try:
        model = read_model(path)
    except EngineError as error:
        yield {"model": path.stem, "path": str(path), "unreadable": str(error)}
        return
    architecture = model.file.architecture
    n_ctx_train = model.file.integer(f"{architecture}.context_length") or 131072
    for case in cases():
        configuration = case.configuration(path, n_ctx_train)
        formula = _formula(model, configuration, case)
        row: Answer = {
            "model": path.stem,
            "path": str(path),
            "architecture": architecture,
            "kind": _kind(model),
            "case": case.name,
            "target": case.target,
            "request": request_of(configuration, case.target),
            "formula": formula,
        }
        row["key"] = _key(path, row["request"])
        if int(str(formula.get("state", 0))) > STATE_LIMIT_BYTES:
            yield {**row, "skipped": "recurrent state above 2 GiB"}
            continue
        answer = truth.ask(str(row["key"]), _request(row))
        if "cannot read" in str(answer.get("error")):
            yield {"model": path.stem, "path": str(path), "unreadable": answer["error"]}
            return
        yield {**row, "truth": answer}


def _formula(model: Model, configuration: Configuration, case: Case) -> Answer:
    before = time.perf_counter()
    try:
        result = estimate(model, configuration, (CPU,), target=case.target)
    except EngineError as error:
        return {"error": str(error)}
    elapsed = time.perf_counter() - before
    cpu = next(device for device in result.devices if device.device.kind == "cpu")
    return {**_terms(cpu), "elapsed_s": round(elapsed, 6)}


def _terms(device: DeviceEstimate) -> Answer:
    sizes: Answer = {kind.value: device.term(kind).nbytes for kind in TermKind}
    sources = {kind.value: device.term(kind).source.value for kind in TermKind}
    ranges = {
        kind.value: (getattr(term, "low_bytes", None), getattr(term, "high_bytes", None))
        for kind, term in device.terms.items()
    }
    return {**sizes, "sources": sources, "ranges": ranges}


def _kind(model: Model) -> str:
    """Tell `experts` and `hybrid` models apart: their graphs are harder to foresee."""
    prefix = model.file.architecture
    if model.file.integer(f"{prefix}.expert_count"):
        return "experts"
    names = {tensor.name.split(".")[-2] for tensor in model.file.tensors}
    recurrent = {"ssm_a", "ssm_in", "ssm_conv1d", "shortconv", "time_mix_w1", "time_mix_key"}
    return "hybrid" if any(name in names for name in recurrent) else "dense"


def _request(row: Answer) -> Answer:
    request = row["request"]
    assert isinstance(request, dict)
    return request


def _key(path: Path, request: object) -> str:
    stat = path.stat()
    asked = [str(path), stat.st_mtime_ns, stat.st_size, request, TRUTH_VERSION]
    return json.dumps(asked, sort_keys=True)


def _known(rows: Path) -> dict[str, Answer]:
    """Read what an earlier run asked llama.cpp, so that changed formulas are compared at once."""
    known = {}
    if rows.exists():
        for line in rows.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "truth" in row:
                known[row["key"]] = row["truth"]
    return known


def _models(folders: list[Path]) -> list[Path]:
    found = [
        path
        for folder in folders
        for path in (sorted(folder.glob("*.gguf")) if folder.is_dir() else [folder])
    ]
    return [path for path in found if not path.name.startswith("mmproj")]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, help="GGUF files, or folders of them")
    parser.add_argument("--out", type=Path, default=Path("accuracy.jsonl"), help="rows; reused")
    parser.add_argument("--docs", type=Path, help="write the report here")
    parser.add_argument("--worst", type=Path, help="write the 60 worst rows here")
    parser.add_argument("--fit-params", type=Path, help="llama-fit-params of the same build")
    return parser.parse_args()


if __name__ == "__main__":
    main()
