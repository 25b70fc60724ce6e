"""A llama-server of this machine, where there is one (`LLAMA_SERVER`, or in the path)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.errors import ServerError
from engine.process.server_process import ServerProcess, find_llama_server, free_port


@contextmanager
def llama_server(
    model: Path, log_path: Path, *options: str, report: Callable[[str], None] = lambda _: None
) -> Iterator[ServerProcess]:
    """Run one that has loaded a model; the test is skipped where there is none."""
    try:
        program = find_llama_server(None)
    except ServerError:
        pytest.skip("no llama-server: name one in LLAMA_SERVER")
    host, port = "127.0.0.1", free_port("127.0.0.1")
    command = (str(program), "--model", str(model), "--host", host, "--port", str(port), *options)
    url = f"http://{host}:{port}"
    process = ServerProcess(command, url=url, log_path=log_path, report=report, pauses_s=(0.1,))
    process.start(loading_s=120)
    try:
        yield process
    finally:
        process.end()
