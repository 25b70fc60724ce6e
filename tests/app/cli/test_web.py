"""The chat in a browser: who may open it, and that it is the real one over a real websocket."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.cli.main import run
from app.cli.web import WebError, serve
from tests.support.waiting import wait_until

COLOURS = re.compile(rb"\x1b\[[0-9;]*m")

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")

from app.cli.web_server import COOKIE, MAIN, command_line  # noqa: E402  needs textual-serve


@dataclass
class Served:
    """A running `kvchat web`, and what it printed once it has ended."""

    process: "subprocess.Popen[str]"
    address: str = ""
    shown_text: str = ""


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[Served]:
    environment = {**os.environ, "HOME": str(folder), "KVCHAT_MODELS": str(folder)}
    command = [sys.executable, "-c", MAIN, "web", "--port", "0", *arguments]
    out, err = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, stdout=out, stderr=err, text=True, env=environment) as server:
        reported = Served(server, server.stdout.readline().split()[-1])
        try:
            yield reported
        finally:
            if server.poll() is None:
                server.send_signal(signal.SIGINT)
                reported.shown_text = server.stdout.read()
                assert server.wait(60) == 0


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address that a running `kvchat web` printed."""
    with served(tmp_path, "--theme", "kvchat-dark") as server:
        yield server.address


@asynccontextmanager
async def browser() -> AsyncIterator["aiohttp.ClientSession"]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


@asynccontextmanager
async def opened_tab(
    address: str, query: str = "", **options: int
) -> AsyncIterator[tuple["aiohttp.ClientSession", "aiohttp.ClientWebSocketResponse"]]:
    """A browser that has loaded the page, and the websocket of its tab."""
    base = address.split("/?")[0]
    async with browser() as session:
        await (await session.get(address)).text()
        async with session.ws_connect(f"{base}/ws{query}", origin=base, **options) as socket:
            yield session, socket


async def painted(socket: "aiohttp.ClientWebSocketResponse", text: str) -> None:
    """Read what the browser would paint until a text is among it."""
    seen = b""
    async with asyncio.timeout(120):
        while text.encode() not in COLOURS.sub(b"", seen):
            message = await socket.receive()
            assert message.type not in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
            if message.type is aiohttp.WSMsgType.BINARY:
                seen += message.data


@pytest.mark.slow
async def test_the_chat_paints_in_a_browser_takes_keys_and_ends_with_its_tab(address: str) -> None:
    base = address.split("/?")[0]
    async with browser() as session:
        page = await (await session.get(address)).text()
        assert f"{base.replace('http', 'ws')}/ws" in page
        assert (await session.get(f"{base}/static/js/textual.js")).status == 200
        async with session.ws_connect(f"{base}/ws?width=100&height=30", origin=base) as socket:
            await painted(socket, "no model was found")
            await socket.send_str(json.dumps(["stdin", "\x1b"]))  # the offer of a model goes
            await painted(socket, "No model is loaded")
            await socket.send_str(json.dumps(["stdin", "Grüße"]))
            await painted(socket, "Grüße")
            await socket.send_str(json.dumps(["resize", {"width": 40, "height": 12}]))
            await painted(socket, "make the window larger")
            await socket.send_str(json.dumps(["stdin", "\x11"]))  # ctrl+q
            await closed(socket)


async def closed(socket: "aiohttp.ClientWebSocketResponse") -> None:
    async with asyncio.timeout(120):
        while not socket.closed:
            await socket.receive()


NO_MESSAGES = (
    "{}", "{{{", "[]", "null", '["resize", "x"]', '["resize", {}]', '["stdin", 3]', "[" * 3000,
    '["stdin", "\\udcff"]', '["resize", {"width": "x", "height": []}]', '["ping", {}]',
    '[["stdin"]]',
)  # fmt: skip


async def test_messages_that_are_none_change_nothing_and_print_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        async with opened_tab(server.address, "?width=100&height=30") as (_, socket):
            await painted(socket, "no model was found")
            for message in NO_MESSAGES:
                await socket.send_str(message)
            await socket.send_bytes(b"\xff")
            await socket.send_str(json.dumps(["stdin", "\x1b"]))
            await painted(socket, "No model is loaded")
    assert "Traceback" not in server.shown_text


async def test_a_chat_that_cannot_start_closes_its_page_with_the_reason(tmp_path: Path) -> None:
    with served(tmp_path, "no-such-model") as server:
        base = server.address.split("/?")[0]
        async with opened_tab(server.address) as (session, socket):
            await closed(socket)
            assert "no-such-model" in await (await session.get(f"{base}/problem")).text()


@pytest.mark.parametrize("wrong", [["--no-open", "starter"], ["--kv", "auot"], ["a", "b"]])
def test_what_no_tab_can_be_started_with_is_refused_at_once(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["web", *wrong]) == 2
    assert "kvchat is running at" not in capsys.readouterr().out


def test_the_word_stands_in_no_arguments_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = tmp_path / "reported"
    opener = tmp_path / "bin" / "xdg-open"
    opener.parent.mkdir()
    opener.write_text(
        f"""#!/bin/sh
printf "%s\\n" "$@" > {reported}.new
ls -ld "$@" "$(dirname "$@")" >> {reported}.new
cat "$@" >> {reported}.new
mv {reported}.new {reported}
"""
    )
    opener.chmod(0o755)
    monkeypatch.setenv("PATH", str(opener.parent), prepend=os.pathsep)
    with served(tmp_path, "--open") as server:
        wait_until(reported.exists)
        page, *modes, html = reported.read_text().splitlines()
    assert server.address.partition("word=")[2] not in page
    assert [mode for mode in modes if mode.startswith("drwx------")]
    assert server.address in html
    assert not Path(page).exists()


async def test_a_tab_ends_with_its_server_however_much_was_typed(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        async with opened_tab(server.address) as (_, socket):
            await painted(socket, "no model was found")
            await socket.send_str(json.dumps(["stdin", "\x1b"]))
            await socket.send_str(json.dumps(["stdin", "a" * 100_000]))
            [tab] = children(server.process.pid)
            server.process.kill()
            server.process.wait()
            wait_until(lambda: not is_running(tab))
            return


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in text.split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_the_page_asks_no_other_host_and_reports_what_it_is(address: str) -> None:
    async with browser() as session:
        answer = await session.get(address)
        page = await answer.text()
        assert "<title>kvchat</title>" in page
        assert 'name="viewport"' in page
        hosts = set(re.findall(r"//([\w.]+)", page))
        assert hosts == {"127.0.0.1"}
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        script = await session.get(f"{address.split('/?')[0]}/kvchat.js")
        assert "focusTerminal" in await script.text()
        assert script.content_type.endswith("/javascript")


async def test_a_tab_of_a_size_that_no_window_has_does_not_fill_the_memory(address: str) -> None:
    size = "?width=999999999&height=999999999"
    async with opened_tab(address, size, max_msg_size=0) as (_, socket):
        await painted(socket, "no model was found")
        await socket.send_str(json.dumps(["resize", {"width": 10**9, "height": 10**9}]))
        await painted(socket, "no model was found")


@pytest.mark.parametrize("name", ["app", "engine"])
async def test_a_tab_runs_no_code_of_the_folder_that_kvchat_was_started_in(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("print('FOREIGN')\n")
    done = subprocess.run(
        f"{command_line([])} --help",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "FOREIGN" not in done.stdout


async def test_nobody_without_the_word_gets_anything(address: str) -> None:
    base = address.split("/?")[0]
    async with browser() as session:
        for url in (base, f"{base}/?word=wrong", f"{base}/ws", f"{base}/static/js/textual.js"):
            answer = await session.get(url)
            assert answer.status == 403, url
            assert "key" in await answer.text()
    async with browser() as session:
        assert (await session.get(address)).status == 200
        [cookie] = [cookie for cookie in session.cookie_jar if cookie.key.startswith(COOKIE)]
        assert cookie["samesite"] == "Strict"
        assert cookie["httponly"]
        assert (await session.get(base)).status == 200
        foreign = {"Origin": "http://evil.example"}
        assert (await session.get(f"{base}/ws", headers=foreign)).status == 403
        assert (await session.get(address, headers={"Host": "evil.example"})).status == 403


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(WebError, match=f"port {port} cannot be used.*--port"):
            serve((), port, lambda _: None)


def test_without_textual_serve_the_command_reports_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "app.cli.web_server")
    monkeypatch.setitem(sys.modules, "textual_serve", None)
    assert run(["web"]) == 1
    assert "pip install 'kvchat[web]'" in capsys.readouterr().err
