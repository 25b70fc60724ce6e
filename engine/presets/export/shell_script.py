"""A shell script that starts llama-server."""

import shlex

from engine.presets.export.llama_server import heading, request_remarks, serving
from engine.presets.export.quoting import lines_of
from engine.presets.export.request import (
    Exported,
    ExportRequest,
    comments,
    slug,
    with_absolute_paths,
)


def file_name(request: ExportRequest) -> str:
    """Give a name for the script."""
    return f"{slug(request.name)}.sh"


def render(request: ExportRequest) -> Exported:
    """Give a POSIX script; what it is called with goes on to llama-server, and wins there."""
    remarks = request_remarks(request)
    words = serving(with_absolute_paths(request))
    body = " \\\n  ".join(shlex.join(line) for line in lines_of(words))
    text = f'#!/bin/sh\n{comments(heading(request, remarks))}exec {body} \\\n  "$@"\n'
    return Exported(text, remarks)
