"""A compose file that runs llama.cpp's own image of llama-server."""

from collections.abc import Iterator
from pathlib import Path

from engine.configuration import Configuration
from engine.presets.export.llama_server import heading, request_remarks, serving
from engine.presets.export.quoting import compose_word
from engine.presets.export.request import (
    Exported,
    ExportRequest,
    comments,
    with_absolute_paths,
    writable,
)

IMAGE = "ghcr.io/ggml-org/llama.cpp"
ANY_ADDRESS = "0.0.0.0"  # inside the container; the host's address is on the published port


def file_name(request: ExportRequest) -> str:  # noqa: ARG001  every format is asked
    """Give the name that docker compose looks for."""
    return "compose.yaml"


def render(request: ExportRequest) -> Exported:
    """Give a compose file; models keep their paths inside the container."""
    placed = with_absolute_paths(request)
    _, *words = serving(placed, host=ANY_ADDRESS)
    remarks = request_remarks(request)
    if request.uses_gpu:
        remarks = (
            *remarks,
            "the image is the one for NVIDIA cards: write server-rocm, server-vulkan or "
            "server-intel for others, with their devices",
        )
    lines = [
        "services:",
        "  llama-server:",
        f"    image: {IMAGE}:{'server-cuda' if request.uses_gpu else 'server'}",
        "    restart: unless-stopped",
        "    ports:",
        f"      - {compose_word(f'{request.host}:{request.port}:{request.port}')}",
        *_volumes(placed.configuration),
        "    command:",
        *(f"      - {compose_word(word)}" for word in words),
        *(_NVIDIA if request.uses_gpu else ()),
    ]
    top = heading(request, remarks, start="docker compose up -d")
    return Exported(comments(top) + "\n".join(lines) + "\n", remarks)


_NVIDIA = (
    "    deploy:",
    "      resources:",
    "        reservations:",
    "          devices:",
    "            - driver: nvidia",
    "              count: all",
    "              capabilities: [gpu]",
)


def _volumes(configuration: Configuration) -> Iterator[str]:
    yield "    volumes:"
    for folder in _folders(configuration):
        place = compose_word(writable(str(folder)))
        yield "      - type: bind"
        yield f"        source: {place}"
        yield f"        target: {place}"
        yield "        read_only: true"


def _folders(configuration: Configuration) -> list[Path]:
    """Give the folders of all files, and those that links among them lead to."""
    files = [configuration.model_path, *configuration.lora_paths]
    if configuration.mmproj_path is not None:
        files.append(configuration.mmproj_path)
    if configuration.draft is not None:
        files.append(configuration.draft.model_path)
    folders = {folder for file in files for folder in (file.parent, file.resolve().parent)}
    return sorted(folders)
