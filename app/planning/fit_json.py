"""A found configuration as JSON: the names are a promise to scripts."""

from app.planning.fitting import Fitted
from app.planning.plan import warnings_of
from engine.configuration import Configuration
from engine.memory.estimate import Estimate


def fit_json(fit: Fitted) -> dict[str, object]:
    """Give a found configuration as what `json.dumps` takes; sizes are bytes."""
    found, plan = fit.found, fit.plan
    return {
        "model": str(fit.model.file.path),
        "architecture": fit.model.file.architecture,
        "goal": str(found.goal),
        "target": found.estimate.target,
        "margin_bytes": fit.wanted.margin_bytes,
        "configuration": _configuration(found.configuration),
        "devices": _devices(found.estimate),
        "steps": [
            {
                "knob": step.knob,
                "text": step.text,
                "gained_tokens": step.gained_tokens,
                "freed_bytes": step.freed_bytes,
            }
            for step in found.steps
        ],
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
    }


def _configuration(configuration: Configuration) -> dict[str, object]:
    draft = configuration.draft
    return {
        "n_ctx": configuration.n_ctx,
        "type_k": configuration.type_k,
        "type_v": configuration.type_v,
        "flash_attention": configuration.flash_attention,
        "n_gpu_layers": configuration.n_gpu_layers,
        "n_cpu_moe": configuration.n_cpu_moe,
        "tensor_split": list(configuration.tensor_split),
        "n_batch": configuration.n_batch,
        "n_ubatch": configuration.n_ubatch,
        "n_slots": configuration.n_slots,
        "draft": None if draft is None else str(draft.model_path),
    }


def _devices(estimate: Estimate) -> list[dict[str, object]]:
    return [
        {
            "name": device.device.name,
            "kind": device.device.kind,
            "total_memory_bytes": device.device.total_bytes,
            "free_memory_bytes": device.device.free_bytes,
            "total_bytes": device.total_bytes,
            "left_bytes": device.left_bytes,
            "terms": {
                str(kind): {"bytes": term.nbytes, "source": str(term.source)}
                for kind, term in device.terms.items()
            },
        }
        for device in estimate.devices
    ]
