"""A server that kvchat starts: found, reached, ended, and its log within a bound."""

import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
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
from engine.process.watchdog import start
from engine.servers import KEY_VARIABLE
from tests.support.hostile_language_server import serving
from tests.support.waiting import wait_until


def process_of(tmp_path: Path, *command: str, url: str = "http://127.0.0.1:9") -> ServerProcess:
    log_path = tmp_path / "log"
    return ServerProcess(command, url=url, log_path=log_path, tell=lambda _: None, pauses_s=(0.05,))


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
        with pytest.raises(ServerError, match="nothing can listen"):
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
    with pytest.raises(ServerError, match="it ended while it loaded"):
        process.start(loading_s=20)
    told = process.log_path.read_text()
    assert "PATH=" in told
    assert "sk-very-secret-123" not in told


def test_why_a_server_ended_is_read_at_the_end_of_a_log_of_any_size(tmp_path: Path) -> None:
    process = process_of(tmp_path, "false")
    filler = "x" * (2 * LAST_BYTES)
    process.log_path.write_text(f"{filler}\nout of memory\n")
    with pytest.raises(ServerError, match="out of memory"):
        raise ServerError(process._last())


def test_a_log_begins_anew_before_it_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "MOST_LOG", 1000)
    with serving("llama-server") as server:
        process = process_of(
            tmp_path, "sh", "-c", "while :; do echo abcdefghij; sleep 0.001; done", url=server.url
        )
        process.start(loading_s=20)
        wait_until(lambda: process.log_path.stat().st_size > 500)
        wait_until(lambda: process.log_path.stat().st_size < 500)
        process.end()


def test_a_server_that_is_being_started_again_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_starting, may_go_on = threading.Event(), threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def held_back(
        command: Sequence[str], log_path: Path, *, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        if started:
            is_starting.set()
            may_go_on.wait(20)
        started.append(start(["sleep", "60"] if started else command, log_path))
        return started[-1]

    monkeypatch.setattr(server_process, "start", held_back)
    with serving("llama-server") as server:
        process = process_of(tmp_path, "sleep", "0.3", url=server.url)
        process.start(loading_s=20)
        assert is_starting.wait(20)
        ending = threading.Thread(target=process.end)
        ending.start()
        wait_until(process._is_ending.is_set)
        may_go_on.set()
        ending.join(20)
    assert len(started) == 2
    assert started[1].poll() is not None
    assert process.pid == started[1].pid
    with pytest.raises(ProcessLookupError):
        os.kill(started[1].pid, 0)
