"""Bounds of the HTTP client that no server backend or download shows."""

from pathlib import Path

import pytest

from engine.http import HttpClient, HttpError, SilentError, UnreachableError, events, lines
from tests.support import hostile_language_server
from tests.support.gguf_server import answering, serving
from tests.support.hostile_language_server import own_certificate
from tests.support.waiting import wait_until


def test_an_event_of_empty_lines_without_end_is_too_long() -> None:
    with pytest.raises(HttpError):
        [*events([b"data:"] * 1_001, limit=1_000)]


def test_the_bound_is_that_of_one_event() -> None:
    assert [*events([b"data: abc", b""] * 500, limit=4)] == [b"abc"] * 500


def test_a_line_is_bounded_however_it_is_split() -> None:
    assert [*lines([b"a", b"b\nc\r", b"\nd"], limit=2)] == [b"ab", b"c", b"d"]
    for chunks in ([b"abc"], [b"ab", b"c"], [b"abc\nd"]):
        with pytest.raises(HttpError):
            [*lines(chunks, limit=2)]


def test_a_key_goes_to_its_own_origin_and_redirects_of_a_keyed_server_are_refused() -> None:
    with serving() as own, serving() as other:
        other.files["/x"] = own.files["/x"] = b"x"
        client = HttpClient(own.url, key="secret", follows_redirects=True)
        own.redirects = {"/moved": f"{other.url}/x"}
        for url in (f"{own.url}/moved", f"{other.url}/x"):
            with client.request("GET", url, limit_s=20) as answer:
                assert answer.url == f"{other.url}/x"
        assert [each.token for each in own.asked] == ["Bearer secret"]
        assert [each.token for each in other.asked] == [None, None]
        strict = HttpClient(own.url, key="secret")
        with pytest.raises(HttpError), strict.request("GET", f"{own.url}/moved", limit_s=20):
            pass
        assert len(other.asked) == 2


def test_a_redirect_out_of_the_encryption_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = own_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    with hostile_language_server.serving(certificate=pem) as server, serving() as other:
        server.misdeed, server.elsewhere = "elsewhere", other.url
        client = HttpClient(server.url, follows_redirects=True)
        with (
            pytest.raises(HttpError, match="https to http"),
            client.request("GET", f"{server.url}/v1/models", limit_s=20),
        ):
            pass
        assert not other.asked
        server.misdeed, server.headers = "none", {"Link": f'<{other.url}>; rel="next"'}
        with client.request("GET", f"{server.url}/v1/models", limit_s=20) as answer:
            answer.body(1 << 20)
            with pytest.raises(HttpError, match="https to http"):
                answer.next_page()


def test_a_cut_connection_over_tls_yields_no_ciphertext(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = own_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    received = bytearray()

    def read_slowly(url: str) -> None:
        with HttpClient(url).request("GET", f"{url}/v1/models", limit_s=0.3) as answer:
            for chunk in answer.chunks:
                wait_until(lambda: answer.watch.is_over)
                received.extend(chunk)

    with hostile_language_server.serving(certificate=pem) as server:
        server.misdeed = "body drip"
        with pytest.raises(SilentError):
            read_slowly(server.url)
    assert set(received) == {ord(" ")}


def test_redirects_without_an_end_are_left() -> None:
    with serving() as server:
        server.redirects = {"/a": "/a"}
        client = HttpClient(server.url, follows_redirects=True)
        with pytest.raises(HttpError), client.request("GET", f"{server.url}/a", limit_s=20):
            pass
        assert len(server.asked) == 11


def test_a_body_is_bounded() -> None:
    with answering(b"x" * 100) as url:
        for limit, is_good in ((100, True), (99, False)):
            try:
                with HttpClient(url).request("GET", url, limit_s=20) as answer:
                    assert len(answer.body(limit)) == 100
            except HttpError:
                assert not is_good
            else:
                assert is_good


def test_nobody_answers() -> None:
    with (
        pytest.raises(UnreachableError),
        HttpClient("http://127.0.0.1:1").request("GET", "http://127.0.0.1:1", limit_s=5),
    ):
        pass
