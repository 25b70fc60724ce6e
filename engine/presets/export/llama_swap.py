"""A model of llama-swap's configuration (schema of August 2026, commit 0bdb3720)."""

from engine.presets.export.llama_server import heading, request_remarks, serving
from engine.presets.export.quoting import lines_of, swap_words, yaml_text
from engine.presets.export.request import (
    Exported,
    ExportRequest,
    comments,
    slug,
    with_absolute_paths,
)

PORT = "${PORT}"  # llama-swap gives each model a port


def file_name(request: ExportRequest) -> str:
    """Give a name for the configuration."""
    return f"{slug(request.name)}.llama-swap.yaml"


def render(request: ExportRequest) -> Exported:
    """Give a whole configuration with one model, or an entry to copy into one that is there."""
    remarks = request_remarks(request)
    *words, _, _ = serving(with_absolute_paths(request))
    command = [*map(swap_words, lines_of(words)), f"--port {PORT}"]
    # It finds macros in names too, and no quote or escape hides one (`config.go`, 00460400).
    name = request.name.replace("${", "$ {")
    lines = [
        "healthCheckTimeout: 600",
        "models:",
        f"  {yaml_text(slug(request.name))}:",
        f"    name: {yaml_text(name)}",
        "    cmd: |",
        *(f"      {line}" for line in command),
    ]
    top = heading(request, remarks, start=f"llama-swap --config {file_name(request)}")
    return Exported(comments(top) + "\n".join(lines) + "\n", remarks)
