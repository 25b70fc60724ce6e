"""kvchat's side of the accuracy table: its formulas alone, device by device."""

import time
from pathlib import Path

from accuracy_cases import Case

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.memory.estimate import estimate
from engine.memory.hardware import Device, instructions_here
from engine.memory.terms import DeviceEstimate, TermKind
from engine.memory.units import GIB
from engine.model.architecture import Model

CPU = Device("CPU", "cpu", 4096 * GIB, 4096 * GIB, instructions=instructions_here())
STAND_IN_BYTES = 24 * GIB
RECURRENT = {"ssm_a", "ssm_in", "ssm_conv1d", "shortconv", "time_mix_w1", "time_mix_key"}
"""Parts of tensor names that only recurrent layers have."""

Answer = dict[str, object]


def formula_of(model: Model, configuration: Configuration, case: Case) -> Answer:
    """Bytes of the formulas: sums over all devices, and each device by its name."""
    gpus = tuple(
        Device(f"GPU {index}", "gpu", STAND_IN_BYTES, STAND_IN_BYTES)
        for index in range(case.n_gpus)
    )
    try:
        estimate(model, configuration, (*gpus, CPU), target=case.target)
    except EngineError as error:
        return {"error": str(error)}
    before = time.perf_counter()  # the header's tensors are summed: a option is turned again
    result = estimate(model, configuration, (*gpus, CPU), target=case.target)
    elapsed = time.perf_counter() - before
    sums: Answer = {
        kind.value: sum(device.term(kind).nbytes for device in result.devices) for kind in TermKind
    }
    devices = {device.device.name: _terms(device) for device in result.devices}
    return {**sums, "devices": devices, "elapsed_s": round(elapsed, 6)}


def _terms(device: DeviceEstimate) -> Answer:
    return {
        kind.value: {
            "nbytes": term.nbytes,
            "source": term.source.value,
            "low_bytes": term.range[0],
            "high_bytes": term.range[1],
        }
        for kind, term in device.terms.items()
    }


def command_of(path: Path, configuration: Configuration, case: Case) -> str:
    """The command that plans a case."""
    layers = configuration.n_gpu_layers
    words = [
        f"kvchat plan {path} --target {case.target} --ctx {configuration.n_ctx}",
        f"--type-k {case.type_k} --type-v {case.type_v} --flash-attention {case.flash_attention}",
        f"--ubatch {case.n_ubatch} --batch {configuration.n_batch} --slots {case.n_slots}",
        *["--unified"] * case.kv_unified,
        *["--swa-full"] * case.swa_full,
        *["--device 900GiB"] * case.n_gpus,
        *[f"--gpu-layers {'all' if layers < 0 else layers}"] * bool(case.n_gpus),
        *["--no-kv-offload"] * (not case.offload_kqv),
        *[f"--tensor-split {':'.join(f'{share:g}' for share in case.tensor_split)}"]
        * bool(case.tensor_split),
    ]
    return " ".join(words)


def kind_of(model: Model) -> str:
    """`experts`, `hybrid` or `dense`: graphs of the first two are harder to predict."""
    if model.file.integer(f"{model.file.architecture}.expert_count"):
        return "experts"
    parts = {part for tensor in model.file.tensors for part in tensor.name.split(".")}
    return "hybrid" if parts & RECURRENT else "dense"
