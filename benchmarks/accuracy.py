"""How far kvchat's formulas are from llama.cpp's own dry run.

The formulas are computed in this process, which never imports llama_cpp; llama.cpp's figures come
from processes of their own. Models are GGUF headers without data (`accuracy_models.py`).

    ../.venv/bin/python accuracy.py --docs results/accuracy.md
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from accuracy_cases import Case, cpu_cases, gpu_cases
from accuracy_formula import command_of, formula_of, kind_of
from accuracy_models import write_header
from accuracy_report import write_report, write_worst

from engine.errors import EngineError
from engine.memory.dry_run import request_of
from engine.model.architecture import Model, read_model
from engine.model.catalog import entries
from tests.support.dry_run_answers import Answer, Truth, key_of, known_answers

SCRATCH = Path(__file__).parents[1] / ".cache" / "accuracy"
QUANTIZATION = "Q4_K_M"
STATE_LIMIT_BYTES = 2 * 1024**3
"""Largest recurrent state: a dry run allocates it; larger cases are left out and listed."""


def main() -> None:
    """Compare every model of the folders, and write rows and report."""
    options = _options()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    stand_in = built_stand_in(options.llama_cpp, options.out) if options.llama_cpp else None
    fresh = options.out.with_suffix(".new")
    truth = Truth(stand_in, known_answers(options.out) | known_answers(fresh))
    rows = []
    with fresh.open("w", encoding="utf-8") as file:
        for path in _models(options.models or [written_headers(options.out)]):
            for row in rows_of(path, truth, [*cpu_cases(), *(gpu_cases() if stand_in else ())]):
                rows.append(row)
                file.write(json.dumps(row) + "\n")
    fresh.replace(options.out)
    if "llama_cpp" in sys.modules:
        sys.exit("the formulas were not computed alone: llama_cpp was imported here")
    if options.worst:
        write_worst(rows, options.worst)
    if options.docs:
        write_report(rows, options.docs)


def rows_of(path: Path, truth: Truth, cases: Iterable[Case]) -> Iterator[Answer]:
    """A row for each case of a model: the bytes of the formulas and of llama.cpp."""
    try:
        model = read_model(path)
    except EngineError as error:
        yield _unreadable(path, error)
        return
    for case in cases:
        if not is_asked(case, model):
            continue
        row = row_of(path, model, case, truth)
        yield row
        if "unreadable" in row:
            return


def is_asked(case: Case, model: Model) -> bool:
    """Whether a case is of interest for a model.

    Rows that take tokens back are asked for where there is a state, and no MTP head: with
    `draft-mtp` llama-server loads its weights too, which a dry run of the trunk leaves out.
    """
    if case.needs_experts:
        return kind_of(model) == "experts"
    return not case.n_rollback or bool(
        model.architecture.states and not model.architecture.head_layers
    )


def row_of(path: Path, model: Model, case: Case, truth: Truth) -> Answer:
    """Both sides of one case."""
    architecture = model.file.architecture
    n_ctx_train = model.file.integer(f"{architecture}.context_length") or 131072
    n_layers = model.file.integer(f"{architecture}.block_count") or 0
    configuration = case.configuration(path, n_ctx_train, n_layers)
    request = request_of(configuration, case.target)
    formula = formula_of(model, configuration, case)
    row: Answer = {
        "model": path.stem,
        "path": str(path),
        "architecture": architecture,
        "kind": kind_of(model),
        "case": case.name,
        "target": case.target,
        "n_gpus": case.n_gpus,
        "request": request,
        "command": command_of(path, configuration, case),
        "formula": formula,
        "key": key_of(path, request, case.n_gpus),
    }
    if int(str(formula.get("state", 0))) > STATE_LIMIT_BYTES:
        return {**row, "skipped": "recurrent state above 2 GiB"}
    answer = truth.ask(str(row["key"]), request, case.n_gpus)
    if "cannot read" in str(answer.get("error")):
        return _unreadable(path, answer["error"])
    return {**row, "truth": answer}


def _unreadable(path: Path, reason: object) -> Answer:
    return {
        "model": path.stem,
        "path": str(path),
        "unreadable": str(reason).replace(str(path), path.name),
    }


def written_headers(rows: Path) -> Path:
    """Write the headers of the catalogue's models beside the rows, and give their folder."""
    folder = rows.with_name("headers")
    folder.mkdir(parents=True, exist_ok=True)
    for entry in entries():
        write_header(entry, QUANTIZATION, folder)
    return folder


def built_stand_in(source: Path, rows: Path) -> Path:
    """Compile the stand-in GPUs against llama.cpp's source, beside the rows."""
    library = rows.with_name("libstand_in_gpu.so")
    code = Path(__file__).with_name("stand_in_gpu.cpp")
    if not library.exists() or library.stat().st_mtime < code.stat().st_mtime:
        headers = [f"-I{source / 'ggml' / name}" for name in ("include", "src")]
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", *headers, str(code)]
        spec = find_spec("llama_cpp")
        if spec is None or spec.origin is None:
            sys.exit("llama-cpp-python is not installed: its libraries are linked with stand-ins")
        linked = [f"-L{Path(spec.origin).parent / 'lib'}", "-lggml", "-lggml-base", "-lggml-cpu"]
        subprocess.run([*command, *linked, "-o", str(library)], check=True)
    return library


def _models(folders: list[Path]) -> list[Path]:
    found = []
    for folder in folders:
        found += sorted(folder.glob("*.gguf")) if folder.is_dir() else [folder]
    return [path for path in found if not path.name.startswith("mmproj")]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "models", nargs="*", type=Path, help="GGUF files or folders; without any, the catalogue"
    )
    parser.add_argument(
        "--out", type=Path, default=SCRATCH / "rows.jsonl", help="rows; reused by the next run"
    )
    parser.add_argument("--docs", type=Path, help="write the report here")
    parser.add_argument("--worst", type=Path, help="write the 60 worst rows here")
    parser.add_argument(
        "--llama-cpp", type=Path, help="source of the same llama.cpp: placements on stand-in GPUs"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
