from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.memory.units import MIB
from engine.model import remote
from engine.model.gguf import MAX_STORED_ELEMENTS, read_gguf
from engine.model.remote import (
    RemoteFileError,
    RemoteUnreachableError,
    parse_address,
    read_remote,
)
from tests.support import hostile_language_server
from tests.support.gguf_files import header, llama_values
from tests.support.gguf_server import Server, dripping, serving
from tests.support.hostile_language_server import own_certificate

TENSORS = [("token_embd.weight", (64, 3), 0, 0), ("blk.0.attn_k.weight", (64, 32), 8, 768)]
SIZE = 1 << 34
REPO = "/owner/repo"


def whole_model(**values: object) -> bytes:
    data = header(llama_values(**values), TENSORS)
    return data + bytes(-len(data) % 32 + 768 + 64 * 34)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    with serving() as server:
        server.files["/m.gguf"] = whole_model()
        server.files[f"{REPO}/resolve/main/m.gguf"] = whole_model()
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_a_real_header_is_the_same_from_far_as_from_near(server: Server, gemma_path: Path) -> None:
    server.files["/gemma.gguf"] = gemma_path.read_bytes()[: 12 * MIB]
    server.size = gemma_path.stat().st_size
    far, near = read_remote(f"{server.url}/gemma.gguf"), read_gguf(gemma_path)
    assert far.values == near.values
    assert far.array_lengths == near.array_lengths
    assert far.tensors == near.tensors
    assert (far.nbytes, far.path) == (near.nbytes, Path("gemma.gguf"))
    assert far.origin == f"{server.url}/gemma.gguf"
    assert near.origin is None
    ranges = [asked.range for asked in server.asked]
    assert ranges == ["bytes=0-4194303", "bytes=4194304-8388607"], "only what the header needs"


def test_a_hub_name_and_its_page_mean_the_same_file(server: Server) -> None:
    for name in (
        "hf:owner/repo/m.gguf",
        "hf:owner/repo/m.gguf@main",
        f"{server.url}/owner/repo/blob/main/m.gguf",
        f"{server.url}/owner/repo/resolve/main/m.gguf?download=true",
    ):
        assert read_remote(name).origin == f"{server.url}{REPO}/resolve/main/m.gguf"


def test_a_split_model_is_read_with_all_of_its_parts(server: Server) -> None:
    first = header({**llama_values(), "split.count": 2}, [("token_embd.weight", (64, 3), 0, 0)])
    second = header({"split.count": 2}, [("blk.0.attn_k.weight", (64, 32), 0, 0)])
    server.files["/big-00001-of-00002.gguf"] = first + bytes(-len(first) % 32 + 768)
    server.files["/big-00002-of-00002.gguf"] = second + bytes(-len(second) % 32 + 8192)
    for number in (1, 2):
        file = read_remote(f"{server.url}/big-0000{number}-of-00002.gguf")
        assert [tensor.name for tensor in file.tensors] == [
            "token_embd.weight",
            "blk.0.attn_k.weight",
        ]
        assert file.architecture == "llama"
        assert file.nbytes == sum(len(server.files[f"/big-0000{n}-of-00002.gguf"]) for n in (1, 2))
    del server.files["/big-00002-of-00002.gguf"]
    with pytest.raises(RemoteFileError, match=r"big-00002-of-00002\.gguf: it does not exist"):
        read_remote(f"{server.url}/big-00001-of-00002.gguf")


def test_a_server_without_ranges_is_left_at_once(server: Server) -> None:
    server.knows_ranges, server.size = False, SIZE
    with pytest.raises(RemoteFileError, match=r"not support range.*\(200\): download"):
        read_remote(f"{server.url}/m.gguf")
    assert len(server.asked) == 1


def test_a_redirection_keeps_the_range_and_the_token_stays_at_home(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving() as other:
        values = {"tokenizer.ggml.tokens": ["x" * 100] * (MAX_STORED_ELEMENTS * 12)}
        other.files["/cdn/m.gguf"] = whole_model(**values)
        first, second = f"{REPO}/resolve/main/m.gguf", "/moved/m.gguf"
        server.redirects = {first: second, second: f"{other.url}/cdn/m.gguf?signature=s"}
        file = read_remote("hf:owner/repo/m.gguf")
        assert file.n_vocab == MAX_STORED_ELEMENTS * 12
        assert [asked.token for asked in server.asked] == ["Bearer hf_secret"] * 2
        assert [asked.token for asked in other.asked] == [None, None]
        last = len(other.files["/cdn/m.gguf"]) - 1
        ranges = [asked.range for asked in other.asked]
        assert ranges == ["bytes=0-4194303", f"bytes=4194304-{last}"]
        assert file.origin == f"{server.url}{first}"
        other.files["/m.gguf"] = whole_model()
        read_remote(f"{other.url}/m.gguf")
        assert other.asked[-1].token is None


def test_the_token_of_the_login_is_used(server: Server, tmp_path: Path) -> None:
    server.secret = "hf_file"
    with pytest.raises(
        RemoteFileError, match=r"private or gated, or it does not exist \(401\).*HF_TOKEN"
    ):
        read_remote("hf:owner/repo/m.gguf")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf_file\n")
    assert read_remote("hf:owner/repo/m.gguf").architecture == "llama"


def test_a_token_that_no_request_can_carry_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "two\nlines")
    with pytest.raises(ModelFileError, match="token in HF_TOKEN"):
        read_remote("hf:owner/repo/m.gguf")
    assert not server.asked


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (401, "GatedRepo", r"gated: accept its terms at http.*/owner/repo, and set HF_TOKEN"),
        (401, "", r"private or gated, or it does not exist"),
        (403, "", r"denied \(403\): request .* at http.*/owner/repo"),
        (404, "EntryNotFound", r"does not exist \(404\)"),
        (416, "", r"empty"),
        (429, "", r"too many requests"),
        (500, "", r"answered 500"),
    ],
)
def test_a_refusal_has_a_remedy(server: Server, status: int, code: str, message: str) -> None:
    server.refusals[f"{REPO}/resolve/main/m.gguf"] = (status, code)
    with pytest.raises(RemoteFileError, match=message):
        read_remote("hf:owner/repo/m.gguf")


def test_a_body_that_ends_early_is_no_header(server: Server) -> None:
    server.cut_at = 100
    with pytest.raises(RemoteUnreachableError, match="connection"):
        read_remote(f"{server.url}/m.gguf")


def test_a_header_that_ends_early_is_named_as_that(server: Server) -> None:
    server.files["/m.gguf"] = whole_model()[:150]
    with pytest.raises(
        ModelFileError, match=r"m\.gguf cannot be read at byte 138: .*more than the file has"
    ):
        read_remote(f"{server.url}/m.gguf")


@pytest.mark.parametrize(
    "content_range",
    ["", "bytes 5-9/100", "bytes */100", "pages 0-9/100", f"bytes 0-9/{'9' * 6000}"],
)
def test_bytes_of_another_range_are_refused(server: Server, content_range: str) -> None:
    server.content_range = content_range
    with pytest.raises(RemoteFileError, match="the server sent"):
        read_remote(f"{server.url}/m.gguf")


HEADERS = b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-999/1000\r\n\r\n"


@pytest.mark.parametrize("start", [b"", HEADERS], ids=["headers", "body"])
def test_a_dripping_server_is_left_in_its_headers_and_in_its_body(start: bytes) -> None:
    with dripping(start) as url, pytest.raises(RemoteUnreachableError, match="no data"):
        read_remote(f"{url}/m.gguf", limit_s=0.2)


def test_a_certificate_that_nobody_signed_is_not_trusted(server: Server, tmp_path: Path) -> None:
    with hostile_language_server.serving(certificate=own_certificate(tmp_path)) as other:
        with pytest.raises(RemoteFileError, match="certificate"):
            read_remote(f"{other.url}/m.gguf")
        server.redirects["/m.gguf"] = f"{other.url}/m.gguf"
        with pytest.raises(RemoteFileError, match="certificate"):
            read_remote(f"{server.url}/m.gguf")


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("file:///etc/passwd", RemoteFileError),
        ("ftp://host/m.gguf", RemoteFileError),
        ("/m.gguf", RemoteFileError),
        ("http://xn--a/m.gguf", RemoteFileError),
        (f"http://{'a' * 300}/m.gguf", RemoteFileError),
        ("http://a..b/m.gguf", RemoteFileError),
    ],
)
def test_a_redirection_to_no_file_of_a_server_is_refused(
    server: Server, place: str, error: type[ModelFileError]
) -> None:
    server.redirects["/m.gguf"] = place
    with pytest.raises(error):
        read_remote(f"{server.url}/m.gguf")


def test_a_changed_file_is_read_again(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    read_remote(f"{server.url}/m.gguf", cache_folder=cache)
    server.etag = '"two"'
    server.files["/m.gguf"] = whole_model(**{"general.name": "Newer"})
    for _ in range(2):
        assert read_remote(f"{server.url}/m.gguf", cache_folder=cache).name == "Newer"
    assert server.asked[-1].headers["if-none-match"] == '"two"'
    server.etag = None
    server.files["/m.gguf"] = whole_model(**{"general.name": "Newest"})
    assert read_remote(f"{server.url}/m.gguf", cache_folder=cache).name == "Newest"


def test_a_file_that_changes_while_it_is_read_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(remote, "CHUNK_BYTES", 100)
    server.etags = ['"one"', '"two"']
    with pytest.raises(RemoteFileError, match="changed while its header was read"):
        read_remote(f"{server.url}/m.gguf", cache_folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_a_connection_the_cached_header_is_used_and_reported(
    server: Server, tmp_path: Path
) -> None:
    first = read_remote(f"{server.url}/m.gguf", cache_folder=tmp_path)
    server.refusals["/m.gguf"] = (503, "")
    cached = read_remote(f"{server.url}/m.gguf", cache_folder=tmp_path)
    assert cached.tensors == first.tensors
    assert "the server does not answer" in (cached.origin or "")
    server.refusals["/m.gguf"] = (404, "")
    with pytest.raises(RemoteFileError, match="does not exist"):
        read_remote(f"{server.url}/m.gguf", cache_folder=tmp_path)


def test_offline_nothing_is_asked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_remote("hf:owner/repo/m.gguf", cache_folder=tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "does not answer" in (
        read_remote("hf:owner/repo/m.gguf", cache_folder=tmp_path).origin or ""
    )
    with pytest.raises(RemoteUnreachableError, match="HF_HUB_OFFLINE is set"):
        read_remote("hf:owner/repo/other.gguf", cache_folder=tmp_path)
    assert len(server.asked) == 1


def test_the_cache_forgets_old_headers(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MAX_CACHE_BYTES", 1500)
    for number in range(5):
        server.files[f"/{number}.gguf"] = whole_model()
        read_remote(f"{server.url}/{number}.gguf", cache_folder=tmp_path)
    assert 1 <= len(list(tmp_path.iterdir())) <= 4
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1500


def test_a_header_without_an_end_is_not_loaded(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr("engine.model.gguf.MAX_HEADER_BYTES", 1 << 14)
    values = {"tokenizer.ggml.tokens": ["x" * 100] * (MAX_STORED_ELEMENTS + 1)}
    server.files["/m.gguf"] = whole_model(**values)
    with pytest.raises(ModelFileError, match="the header is longer"):
        read_remote(f"{server.url}/m.gguf")
    assert len(server.asked) == 16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:owner/repo", "hf:owner/repository/file.gguf"),
        ("hf:owner/repo/model.safetensors", "hf:owner/repository/file.gguf"),
        ("https://huggingface.co/owner/repo/blob/main/model.safetensors", "is not a GGUF file"),
        ("https://huggingface.co/owner/repo", "does not end in .gguf"),
        ("https://user:secret@host/m.gguf", "a user name"),
        ("http:///m.gguf", "no host"),
        ("http://[::1/m.gguf", "is not a URL"),
        ("http://host:port/m.gguf", "is not a URL"),
    ],
)
def test_what_names_no_file_is_refused_before_anything_is_asked(name: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        read_remote(name)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["huggingface.co", "huggingface.co:80", "hf.co"])
def test_the_hub_is_asked_over_an_encrypted_connection_only(host: str) -> None:
    address = parse_address(f"http://{host}/models/m.gguf?download=true")
    assert address.page
    assert address.url == f"https://{host.removesuffix(':80')}/models/m.gguf?download=true"
    other = parse_address("http://huggingface.co:8080/models/m.gguf")
    assert (other.page, other.url) == (None, "http://huggingface.co:8080/models/m.gguf")


def test_a_revision_and_a_folder_are_asked_for(server: Server) -> None:
    server.files[f"{REPO}/resolve/refs%2Fpr%2F1/a%20b/m.gguf"] = whole_model()
    assert read_remote("hf:owner/repo/a b/m.gguf@refs/pr/1").architecture == "llama"
