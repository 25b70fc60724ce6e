"""A plan as JSON: the names are a promise to scripts."""

from app.planning.plan import Plan, warnings_of
from engine.memory.estimate import DeviceEstimate, TermKind


def plan_json(plan: Plan) -> dict[str, object]:
    """Give a plan as what `json.dumps` takes; sizes are bytes."""
    file = plan.model.file
    return {
        "model": str(file.path),
        "architecture": file.architecture,
        "file_type": file.file_type,
        "target": plan.setup.target,
        "n_ctx": plan.estimate.n_ctx,
        "max_n_ctx": plan.max_n_ctx,
        "fits": plan.fits,
        "margin_bytes": plan.setup.margin_bytes,
        "devices": [_device(plan, device) for device in plan.estimate.devices],
        "warnings": list(warnings_of(plan)),
        "args": plan.arguments,
    }


def _device(plan: Plan, device: DeviceEstimate) -> dict[str, object]:
    terms = {f"{kind}_bytes": device.term(kind) for kind in TermKind}
    return {
        "name": device.device.name,
        "kind": device.device.kind,
        "total_memory_bytes": device.device.total_bytes,
        "free_memory_bytes": device.device.free_bytes,
        **{name: term.nbytes for name, term in terms.items()},
        "source": {name: str(term.source) for name, term in terms.items()},
        "total_bytes": device.total_bytes,
        "left_bytes": device.left_bytes,
        "fits": plan.device_fits(device),
    }
