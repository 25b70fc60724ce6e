"""The chat in a browser: who may open it, and that it is the real one over a real websocket."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.cli.main import run
from app.cli.web import WebError, serve

COLOURS = re.compile(rb"\x1b\[[0-9;]*m")

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")

from app.cli.web_server import COOKIE, MAIN, command_line  # noqa: E402  needs textual-serve


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address that a running `kvchat web` printed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KVCHAT_MODELS", str(tmp_path))
    command = [sys.executable, "-c", MAIN, "web", "--port", "0", "--theme", "kvchat-paper"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        try:
            yield line.split()[-1]
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0


@asynccontextmanager
async def browser() -> AsyncIterator["aiohttp.ClientSession"]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


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
            async with asyncio.timeout(120):
                while not socket.closed:
                    await socket.receive()


async def test_the_page_asks_no_other_host_and_says_what_it_is(address: str) -> None:
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
    base = address.split("/?")[0]
    async with browser() as session:
        await (await session.get(address)).text()
        url = f"{base}/ws?width=999999999&height=999999999"
        async with session.ws_connect(url, origin=base, max_msg_size=0) as socket:
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
            assert "word" in await answer.text()
    async with browser() as session:
        assert (await session.get(address)).status == 200
        [cookie] = [cookie for cookie in session.cookie_jar if cookie.key.startswith(COOKIE)]
        assert cookie["samesite"] == "Strict"
        assert cookie["httponly"]
        assert (await session.get(base)).status == 200
        foreign = {"Origin": "http://evil.example"}
        assert (await session.get(f"{base}/ws", headers=foreign)).status == 403
        assert (await session.get(address, headers={"Host": "evil.example"})).status == 403


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(WebError, match=f"port {port} cannot be used.*--port"):
            serve((), port, lambda _: None)


def test_without_textual_serve_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "app.cli.web_server")
    monkeypatch.setitem(sys.modules, "textual_serve", None)
    assert run(["web"]) == 1
    assert "pip install 'kvchat[web]'" in capsys.readouterr().err
