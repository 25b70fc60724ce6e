"""Plans and found configurations as JSON: the names are a promise to scripts."""

from dataclasses import asdict

from engine.configuration import Configuration
from engine.memory.terms import DeviceEstimate, TermKind
from engine.planning.comparison import Cell, CostTable, cost_table
from engine.planning.fit import FitResult
from engine.planning.models import ModelOption
from engine.planning.planner import Plan, Planner, warnings_of
from engine.planning.speed import SpeedBound
from engine.planning.verdict import FitVerdict, device_verdict
from engine.planning.what_if import Effect, what_ifs
from engine.planning.workers import traffic
from engine.policy.known import Standing

MAX_CONTEXTS = 16


def plan_json(plan: Plan, planner: Planner) -> dict[str, object]:
    """A plan as what `json.dumps` takes; sizes are bytes."""
    file = plan.model.file
    table = cost_table(plan, planner.estimator(plan.setup), MAX_CONTEXTS)
    effects = what_ifs(plan, planner, planner.facts_of(plan.setup))
    return {
        "model": str(file.path),
        "architecture": file.architecture,
        "file_type": file.file_type,
        "target": plan.setup.target,
        "n_ctx": plan.estimate.n_ctx,
        "max_n_ctx": plan.max_n_ctx,
        "fits": plan.fits,
        "verdict": str(plan.verdict),
        "margin_bytes": plan.setup.margin_bytes,
        "speed": None if plan.speed is None else asdict(plan.speed),
        **_bound(plan.bound),
        "quality": _quality(plan.quality),
        "devices": [_device(each, plan.setup.margin_bytes) for each in plan.estimate.devices],
        "table": _table(table),
        "alternatives": list(map(_effect, effects)),
        "warnings": list(warnings_of(plan)),
        "args": plan.arguments,
        "workers": _workers(plan),
    }


def option_json(option: ModelOption) -> dict[str, object]:
    """A model of a list as what `json.dumps` takes."""
    return {
        "key": option.key,
        "name": option.name,
        "verdict": None if option.verdict is None else str(option.verdict),
        "spills": option.spills,
        "needed_bytes": option.needed_bytes,
        "free_bytes": option.free_bytes,
        "n_ctx": option.n_ctx,
        "max_n_ctx": option.max_n_ctx,
        "speed": None if option.speed is None else asdict(option.speed),
        **_bound(option.bound),
        "problem": option.problem,
    }


def _bound(bound: SpeedBound | None) -> dict[str, object]:
    """The bound, or null and why it is not known."""
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
    sizes = ("total_bytes", "shared_bytes", "mapped_bytes", "reclaimable_bytes", "left_bytes")
    return {
        "name": device.device.name,
        "kind": device.device.kind,
        "total_memory_bytes": device.device.total_bytes,
        "free_memory_bytes": device.device.free_bytes,
        **{name: term.nbytes for name, term in terms.items()},
        "source": {name: str(term.source) for name, term in terms.items()},
        "range": {name: list(term.range) for name, term in terms.items()},
        "note": {name: term.note for name, term in terms.items() if term.note},
        **{name: getattr(device, name) for name in sizes},
        "fits": verdict is FitVerdict.FITS,
        "verdict": str(verdict),
    }


def _quality(standing: Standing) -> dict[str, object]:
    """What is known of the cache types; `passes_gates` is null where nothing was measured."""
    return {
        "basis": str(standing.basis),
        "text": standing.text,
        "passes_gates": standing.is_kept,
    }


def _table(table: CostTable) -> dict[str, object]:
    rows = [
        {
            "type_k": row.types.k,
            "type_v": row.types.v,
            "quality": _quality(row.quality),
            "cells": list(map(_cell, row.cells)),
        }
        for row in table.rows
    ]
    return {"n_ctx": list(table.contexts), "rows": rows}


def _cell(cell: Cell) -> dict[str, object]:
    """A cell; `total_bytes` is null where llama.cpp refuses the combination."""
    verdict = None if cell.verdict is None else str(cell.verdict)
    return {"total_bytes": cell.total_bytes, "verdict": verdict, "is_plan": cell.is_current}


def _effect(effect: Effect) -> dict[str, object]:
    return {
        "change": effect.label,
        "delta_bytes": effect.delta_bytes,
        "delta_max_n_ctx": effect.delta_n_ctx,
        "verdict": str(effect.verdict),
    }


def fit_json(fit: FitResult) -> dict[str, object]:
    """A found configuration as what `json.dumps` takes; sizes are bytes."""
    found, plan, margin = fit.found, fit.plan, fit.plan.setup.margin_bytes
    return {
        "model": str(plan.model.file.path),
        "architecture": plan.model.file.architecture,
        "goal": str(found.goal),
        "target": found.estimate.target,
        "margin_bytes": margin,
        "configuration": _configuration(found.configuration),
        **_bound(plan.bound),
        "quality": _quality(found.quality),
        "devices": [_device(each, margin) for each in found.estimate.devices],
        "steps": [asdict(each) for each in found.settings],
        "alternatives": [
            {
                "label": other.label,
                "configuration": _configuration(other.configuration),
                "total_bytes": other.estimate.total_bytes,
            }
            for other in found.alternatives
        ],
        "warnings": list(warnings_of(plan)),
        "args": plan.arguments,
        "command": plan.command_line,
        "workers": _workers(plan),
    }


def _workers(plan: Plan) -> dict[str, object] | None:
    """The workers of a plan and what goes over the net; null where it has none."""
    machine = plan.setup.machine
    sent = traffic(plan.model, plan.estimate) if machine.workers else None
    if sent is None:
        return None
    commands = {each.endpoint: each.command() for each in machine.workers}
    token_s = sent.token_s(machine.net_gbps)
    return {"commands": commands, "net_gbps": machine.net_gbps, "token_s": token_s, **asdict(sent)}


CONFIGURED = (
    "n_ctx", "type_k", "type_v", "flash_attention", "n_gpu_layers", "n_cpu_moe", "n_batch",
    "n_ubatch", "n_slots",
)  # fmt: skip


def _configuration(now: Configuration) -> dict[str, object]:
    return {
        **{name: getattr(now, name) for name in CONFIGURED},
        "tensor_split": list(now.tensor_split),
        "draft": None if now.draft is None else str(now.draft.model_path),
    }
