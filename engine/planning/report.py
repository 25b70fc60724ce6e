"""Plans and found configurations as JSON values, with sizes in bytes, and as exports."""

from dataclasses import asdict

from engine.configuration import Configuration
from engine.memory.terms import DeviceEstimate, TermKind
from engine.planning.changes import best_changes, changes
from engine.planning.fit import FitResult
from engine.planning.models import ModelOption
from engine.planning.planner import Plan, Planner, warnings_of
from engine.planning.speed import SpeedBound
from engine.planning.table import CostTable, cost_table
from engine.planning.verdict import FitVerdict, device_verdict
from engine.planning.workers import seconds_of, traffic
from engine.policy.known import Standing
from engine.presets.export import DEFAULT_PORT, ExportRequest

MAX_CONTEXTS = 16
SIZES = ("total_bytes", "shared_bytes", "mapped_bytes", "reclaimable_bytes", "left_bytes")
CONFIGURED = (
    "n_ctx", "type_k", "type_v", "flash_attention", "n_gpu_layers", "n_cpu_moe", "n_batch",
    "n_ubatch", "n_slots",
)  # fmt: skip


def plan_json(plan: Plan, planner: Planner) -> dict[str, object]:
    """A plan with its table and its changes."""
    found = changes(plan, planner, planner.facts_of(plan.setup))
    return {
        **_head(plan),
        "file_type": plan.model.file.file_type,
        "n_ctx": plan.estimate.n_ctx,
        "max_n_ctx": plan.max_n_ctx,
        "fits": plan.fits,
        "verdict": str(plan.verdict),
        "speed": None if plan.speed is None else asdict(plan.speed),
        "quality": _quality(plan.quality),
        "devices": [_device(each, plan.setup.margin_bytes) for each in plan.estimate.devices],
        "table": _table(cost_table(plan, planner.estimator(plan.setup), MAX_CONTEXTS)),
        "alternatives": [
            {
                "change": each.label,
                "delta_bytes": each.delta_bytes,
                "delta_max_n_ctx": each.delta_n_ctx,
                "verdict": str(each.verdict),
            }
            for each in best_changes(found)
        ],
    }


def fit_json(fit: FitResult) -> dict[str, object]:
    """A found configuration with its settings and alternatives."""
    found, plan = fit.found, fit.plan
    return {
        **_head(plan),
        "goal": str(found.goal),
        "configuration": _configuration(found.configuration),
        "quality": _quality(found.quality),
        "devices": [_device(each, plan.setup.margin_bytes) for each in found.estimate.devices],
        "steps": [asdict(each) for each in found.settings],
        "alternatives": [
            {
                "label": each.label,
                "configuration": _configuration(each.estimate.configuration),
                "total_bytes": each.estimate.total_bytes,
            }
            for each in found.alternatives
        ],
        "command": plan.command_line,
    }


def export_request(
    plan: Plan,
    *,
    preset: str | None = None,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    server: str = "llama-server",
) -> ExportRequest:
    """The export of a plan, named by the model's file and the preset."""
    stem, short = plan.model.file.path.stem, plan.shortages
    verdict = "✗ does not fit" if plan.verdict is FitVerdict.NO else "! tight"
    shortage = [f"{verdict}: {', '.join(short)}"] if short else []
    return ExportRequest(
        configuration=plan.exported,
        model=plan.model,
        name=name or (f"{stem} {preset}" if preset else stem),
        program=server,
        uses_gpu=any(device.device.kind == "gpu" for device in plan.used_devices),
        host=host,
        port=port,
        margin_bytes=plan.setup.margin_bytes,
        warnings=(*shortage, *warnings_of(plan)),
    )


def option_json(option: ModelOption) -> dict[str, object]:
    """A model of a list."""
    plain = ("key", "name", "spills", "needed_bytes", "free_bytes", "n_ctx", "max_n_ctx", "problem")
    return {
        **{name: getattr(option, name) for name in plain},
        "verdict": option.verdict,
        "speed": None if option.speed is None else asdict(option.speed),
        **_bound(option.bound),
    }


def _head(plan: Plan) -> dict[str, object]:
    return {
        "model": str(plan.model.file.path),
        "architecture": plan.model.file.architecture,
        "target": plan.estimate.target,
        "margin_bytes": plan.setup.margin_bytes,
        **_bound(plan.bound),
        "warnings": list(warnings_of(plan)),
        "args": plan.arguments,
        "workers": _workers(plan),
    }


def _bound(bound: SpeedBound | None) -> dict[str, object]:
    """The speed bound, or null and the reason why it is unknown."""
    if bound is None or bound.doubt:
        return {"speed_bound": None, "speed_unknown": "" if bound is None else bound.doubt}
    found = {
        "decode_tps": bound.tps,
        "full_context_tps": bound.full_tps,
        "n_ctx": bound.n_ctx,
        "reads": [asdict(each) for each in bound.reads],
    }
    return {"speed_bound": found, "speed_unknown": ""}


def _device(device: DeviceEstimate, margin_bytes: int) -> dict[str, object]:
    terms = {f"{kind}_bytes": device.term(kind) for kind in TermKind}
    verdict = device_verdict(device, margin_bytes)
    return {
        "name": device.device.name,
        "kind": device.device.kind,
        "total_memory_bytes": device.device.total_bytes,
        "free_memory_bytes": device.device.free_bytes,
        **{name: term.nbytes for name, term in terms.items()},
        "source": {name: str(term.source) for name, term in terms.items()},
        "range": {name: list(term.range) for name, term in terms.items()},
        "note": {name: term.note for name, term in terms.items() if term.note},
        **{name: getattr(device, name) for name in SIZES},
        "fits": verdict is FitVerdict.FITS,
        "verdict": str(verdict),
    }


def _quality(standing: Standing) -> dict[str, object]:
    """Quality of the K/V types; `passes_gates` is null if nothing was measured."""
    basis, text = str(standing.basis), standing.text
    return {"basis": basis, "text": text, "passes_gates": standing.passes}


def _table(table: CostTable) -> dict[str, object]:
    """Rows of K/V types; `total_bytes` is null if llama.cpp refuses the combination."""
    rows = [
        {
            "type_k": row.types.k,
            "type_v": row.types.v,
            "quality": _quality(row.quality),
            "cells": [asdict(cell) for cell in row.cells],
        }
        for row in table.rows
    ]
    return {"n_ctx": list(table.contexts), "rows": rows}


def _workers(plan: Plan) -> dict[str, object] | None:
    """Commands and network traffic of the RPC workers; null without workers."""
    machine = plan.setup.machine
    sent = traffic(plan.model, plan.estimate) if machine.workers else None
    if sent is None:
        return None
    commands = {each.endpoint: each.command() for each in machine.workers}
    token_s = seconds_of(sent.token_bytes, machine.net_gbps)
    return {"commands": commands, "net_gbps": machine.net_gbps, "token_s": token_s, **asdict(sent)}


def _configuration(now: Configuration) -> dict[str, object]:
    return {
        **{name: getattr(now, name) for name in CONFIGURED},
        "tensor_split": list(now.tensor_split),
        "draft": None if now.draft is None else str(now.draft.model_path),
    }
