"""The INI of llama-server's router (`--models-preset`), llama.cpp b11434 (`common/preset.cpp`)."""

from engine.presets.export.flag_sets import CURRENT
from engine.presets.export.llama_server import heading, request_remarks
from engine.presets.export.options import options
from engine.presets.export.quoting import ini_value
from engine.presets.export.request import (
    Exported,
    ExportRequest,
    comments,
    slug,
    with_absolute_paths,
    writable,
)


def file_name(request: ExportRequest) -> str:
    """Give a name for the INI."""
    return f"{slug(request.name)}.ini"


def render(request: ExportRequest) -> Exported:
    """Give an INI with one section; the router sets host and port itself.

    Raises:
        ExportError: a value has a character that the INI cannot hold.
    """
    configuration = with_absolute_paths(request).configuration
    remarks = request_remarks(request)
    if configuration.tensor_overrides and configuration.n_cpu_moe:
        remarks = (
            *remarks,
            f"n_cpu_moe is {configuration.n_cpu_moe}: the router puts it before the tensor "
            "overrides, so that experts of those layers stay in main memory whatever they say",
        )
    keys = "".join(
        f"{option.name} = {ini_value(writable(option.value or 'true'))}\n"
        for option in options(configuration, CURRENT)
    )
    start = f"llama-server --models-preset {file_name(request)} --port {request.port}"
    top = comments(heading(request, remarks, start=start), mark=";")
    return Exported(f"{top}version = 1\n\n[{slug(request.name)}]\n{keys}", remarks)
