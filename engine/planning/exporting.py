"""The export of a plan, for the command and the screen."""

from engine.planning.planner import Plan, warnings_of
from engine.planning.verdict import FitVerdict
from engine.presets.export import DEFAULT_PORT, ExportError, ExportRequest, Format
from engine.presets.formats import FORMATS
from engine.validation import nearest


def export_format(name: str) -> Format:
    """The export format of a name."""
    if name not in FORMATS:
        near = nearest(name, FORMATS)
        hint = f"did you mean {near[0]}? Or choose" if near else "choose"
        raise ExportError(f"unknown format {name!r}: {hint} one of {', '.join(FORMATS)}")
    return FORMATS[name]


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
