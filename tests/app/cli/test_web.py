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
from app.cli.web import COOKIE, MAIN, WebError, serve

COLOURS = re.compile(rb"\x1b\[[0-9;]*m")

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")


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
    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    assert run(["web"]) == 1
    assert "pip install 'kvchat[web]'" in capsys.readouterr().err
