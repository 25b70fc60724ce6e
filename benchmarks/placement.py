"""Compares placement on several devices with llama.cpp's own, device by device.

    ../.venv/bin/python placement.py --binaries FOLDER [--record ../tests/data/placements.json]

Needs `llama-fit-params` and `ggml-rpc-server` of the llama.cpp that the binding vendors, built with
`-DGGML_RPC=ON`: two servers on this machine stand for two GPUs, so that layers, experts, overrides
and caches are laid out as on a machine with GPUs, without loading anything. Such devices make no
copies of CUDA's, and the program reserves logits for a whole micro-batch: both are left out here.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from accuracy_models import write_header

from engine.configuration import Configuration, TensorOverride
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model
from engine.model.catalog import find_entry

PORTS = (50181, 50182)
MODELS = (
    "llama-3.2-1b", "qwen3-8b", "gemma-3-12b", "gpt-oss-20b", "qwen3-30b-a3b", "qwen3.6-27b",
    "deepseek-v2-lite", "glm-4.5-air", "lfm2-1.2b",
)  # fmt: skip
GPUS = tuple(Device(f"RPC{i}", "gpu", 100 * GIB, 100 * GIB) for i in range(2))
DEVICES = (*GPUS, Device("Host", "cpu", 500 * GIB, 500 * GIB))
FFN_TO_CPU = r"blk\.[0-5]\.ffn"


@dataclass(frozen=True)
class Case:
    configuration: Configuration
    truth: dict[str, list[int]]


def configurations(path: Path) -> Iterator[Configuration]:
    base = Configuration(path, 8192, tensor_split=(3.0, 1.0), flash_attention="on")
    for n_gpu_layers in (-1, 20, 5, 1, 0):
        yield replace(base, n_gpu_layers=n_gpu_layers)
    for shares in ((1.0, 1.0), (1.0, 0.0)):
        yield replace(base, tensor_split=shares)
    yield replace(base, offload_kqv=False)
    yield replace(base, type_k="q8_0", type_v="q8_0")
    yield replace(base, n_ctx=32768, n_slots=4)
    yield replace(base, split_mode="none", main_gpu=1)
    yield replace(base, tensor_overrides=(TensorOverride(FFN_TO_CPU, "CPU"),))
    yield replace(base, n_cpu_moe=4)
    yield replace(base, n_cpu_moe=-1)


def measured(binaries: Path, configuration: Configuration) -> dict[str, list[int]]:
    """Weights, cache and graph of each device in MiB, rounded down by the program."""
    command = [binaries / "llama-fit-params", *_arguments(configuration)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.split() for line in done.stdout.splitlines()]
    found = {line[0]: [int(n) for n in line[1:]] for line in lines if len(line) == 4}
    if not found:
        sys.exit(f"llama-fit-params gave no figures:\n{done.stderr[-2000:]}")
    return found


def _arguments(now: Configuration) -> list[str]:
    servers = ",".join(f"127.0.0.1:{port}" for port in PORTS)
    arguments = ["-m", str(now.model_path), "--rpc", servers, "-c", str(now.n_ctx)]
    arguments += ["-ngl", "999" if now.n_gpu_layers < 0 else str(now.n_gpu_layers)]
    arguments += ["-ts", ",".join(f"{share:g}" for share in now.tensor_split)]
    arguments += ["-fa", "on", "-fitp", "on", "--no-repack", "-ctk", now.type_k, "-ctv", now.type_v]
    arguments += ["-sm", now.split_mode, "-mg", str(now.main_gpu)]
    if now.n_slots > 1:
        arguments += ["-np", str(now.n_slots)]
    arguments += [] if now.offload_kqv else ["-nkvo"]
    for override in now.tensor_overrides:
        arguments += ["-ot", f"{override.pattern}={override.device}"]
    if now.n_cpu_moe:
        arguments += ["-cmoe"] if now.n_cpu_moe < 0 else ["-ncmoe", str(now.n_cpu_moe)]
    return arguments


def formula(model: Model, configuration: Configuration) -> dict[str, list[float]]:
    """Weights and cache of each device in MiB."""
    found = estimate(model, configuration, DEVICES, target="llama-server")
    return {
        device.device.name: [
            device.term(TermKind.WEIGHTS).nbytes / MIB,
            (device.term(TermKind.KV).nbytes + device.term(TermKind.STATE).nbytes) / MIB,
        ]
        for device in found.devices
    }


def run(binaries: Path, folder: Path) -> Iterator[tuple[str, Case]]:
    servers = [
        subprocess.Popen(
            [binaries / "ggml-rpc-server", "-H", "127.0.0.1", "-p", str(port), "-d", "CPU"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for port in PORTS
    ]
    try:
        time.sleep(1)
        for name in MODELS:
            path = write_header(find_entry(name), "Q4_K_M", folder)
            for configuration in configurations(path):
                yield name, Case(configuration, measured(binaries, configuration))
            path.unlink()
    finally:
        for server in servers:
            server.kill()


def as_record(name: str, case: Case) -> dict[str, object]:
    now = case.configuration
    base = Configuration(now.model_path, 8192)
    changes = {
        field: getattr(now, field)
        for field in Configuration.__dataclass_fields__
        if getattr(now, field) != getattr(base, field) and field != "tensor_overrides"
    }
    overrides = [[item.pattern, item.device] for item in now.tensor_overrides]
    return {"model": name, "changes": changes, "overrides": overrides, "truth": case.truth}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--binaries", type=Path, required=True)
    options.add_argument("--record", type=Path)
    asked = options.parse_args()
    records, worst = [], []
    with TemporaryDirectory() as folder:
        for name, case in run(asked.binaries, Path(folder)):
            mine = formula(find_entry(name).model(), case.configuration)
            errors = [
                max(0.0, truth[i] - mine[device][i], mine[device][i] - truth[i] - 1)
                for device, truth in case.truth.items()
                for i in range(2)
            ]
            worst.append(max(errors))
            records.append(as_record(name, case))
            if worst[-1] > 1:
                print(f"{name}: {records[-1]['changes']} {records[-1]['overrides']}")
                print(f"  llama.cpp {case.truth}\n  kvchat    {mine}")
    print(f"{len(worst)} cases, median {median(worst):.2f} and worst {max(worst):.2f} MiB beyond")
    if asked.record:
        lines = ",\n".join(json.dumps(record) for record in records)
        asked.record.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
