"""A server that kvchat starts: found, reached, ended, and its log within a bound."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import ServerError
from engine.process import server_process
from engine.process.server_process import (
    LAST_BYTES,
    ServerProcess,
    address_of,
    free_port,
    is_exposed,
)
from engine.servers import KEY_VARIABLE
from tests.support.hostile_language_server import serving
from tests.support.waiting import wait_until


def process_of(
    tmp_path: Path,
    *command: str,
    url: str = "http://127.0.0.1:9",
    report: Callable[[str], None] = lambda _: None,
) -> ServerProcess:
    log_path = tmp_path / "log"
    return ServerProcess(command, url=url, log_path=log_path, report=report, pauses_s=(0.05,))


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6"))],
)
def test_a_free_port_is_found_at_addresses_of_both_kinds(host: str) -> None:
    assert free_port(host) > 0


def test_an_address_that_is_not_this_machine_s_is_refused() -> None:
    for host in ("192.0.2.1", "not a host", "x" * 300):
        with pytest.raises(ServerError, match="listen"):
            free_port(host)


def test_ipv6_stands_in_brackets_in_front_of_a_port() -> None:
    assert (address_of("::1", 80), address_of("127.0.0.1", 80)) == ("[::1]:80", "127.0.0.1:80")


def test_who_listens_for_others_than_this_machine_is_known() -> None:
    assert [is_exposed(host) for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9")] == [
        False
    ] * 4
    assert [is_exposed(host) for host in ("0.0.0.0", "::", "192.168.1.2", "cellar")] == [True] * 4


def test_a_server_answers_here_whatever_proxy_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving("llama-server") as server:
        process = process_of(tmp_path, "sleep", "60", url=server.url)
        process.start(loading_s=20)
        process.end()


def test_the_key_of_other_servers_is_not_given_to_one_that_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-very-secret-123")
    process = process_of(tmp_path, "env")
    with pytest.raises(ServerError, match="ended"):
        process.start(loading_s=20)
    log = process.log_path.read_text()
    assert "PATH=" in log
    assert "sk-very-secret-123" not in log


def test_why_a_server_ended_is_read_at_the_end_of_a_log_of_any_size(tmp_path: Path) -> None:
    writes = f"head -c {2 * LAST_BYTES} /dev/zero | tr '\\0' x; echo; echo out of memory"
    with pytest.raises(ServerError, match="out of memory"):
        process_of(tmp_path, "sh", "-c", writes).start(loading_s=20)


def test_a_log_is_truncated_before_it_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "MAX_LOG", 1000)
    with serving("llama-server") as server:
        process = process_of(
            tmp_path, "sh", "-c", "while :; do echo abcdefghij; sleep 0.001; done", url=server.url
        )
        process.start(loading_s=20)
        wait_until(lambda: process.log_path.stat().st_size > 500)
        wait_until(lambda: process.log_path.stat().st_size < 500)
        process.end()


def test_a_server_that_is_being_started_again_ends_too(tmp_path: Path) -> None:
    with serving("llama-server") as server:
        for _ in range(5):
            process = process_of(tmp_path, "sleep", "0.1", url=server.url)
            process.start(loading_s=20)
            wait_until(lambda process=process: process.n_starts > 1)
            process.end()
            with pytest.raises(ProcessLookupError):
                os.kill(process.pid, 0)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("/nowhere/llama-server",), "cannot be started: No such file"),
        (("sleep", "60"), "not ready after 0.2 s: Its log .* ends: empty"),
        (("sh", "-c", "exit 3"), "exit code 3"),
    ],
)
def test_a_server_that_does_not_answer_is_reported_with_its_log(
    command: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ServerError, match=words):
        process_of(tmp_path, *command).start(loading_s=0.2 if "sleep" in command else 20)


def test_a_server_that_cannot_be_started_again_is_reported(tmp_path: Path) -> None:
    (program := tmp_path / "once").write_text("#!/bin/sh\nrm $0; echo it broke; sleep 0.2; exit 3")
    program.chmod(0o755)
    reported: list[str] = []
    with serving("llama-server") as server:
        process = process_of(tmp_path, str(program), url=server.url, report=reported.append)
        process.start(loading_s=20)
        wait_until(lambda: len(reported) == 2)
        process.end()
    assert "exit code 3" in reported[0]
    assert "ends: it broke; it restarts in 0.05 s" in reported[0]
    assert "cannot be started" in reported[1]


def test_a_server_that_ignores_the_request_to_end_is_killed_and_one_that_is_left_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "END_S", 0.2)
    deaf = ("sh", "-c", 'trap "" TERM; while :; do sleep 0.1; done')
    with serving("llama-server") as server:
        process = process_of(tmp_path, *deaf, url=server.url)
        process.start(loading_s=20)
        process.leave()
        os.kill(process.pid, 0)
        process.end()
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
