"""Models of a hub: listed, found by name, and downloaded past what goes wrong on the way."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.model import hub as hub_module
from engine.model.hub import (
    DownloadError,
    HubName,
    StoppedError,
    download,
    find_repositories,
    parse_hub_name,
    repository_models,
)
from tests.support.gguf_server import dripping
from tests.support.hub_server import Hub, serving_hub

REPO = "maker/Tiny-GGUF"
DATA = bytes(range(256)) * 4096


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one repository; a connection that ends is tried again at once."""
    with serving_hub() as hub:
        hub.files[REPO] = {
            "Tiny.Q8_0.gguf": DATA * 2,
            "Tiny.Q4_K_M.gguf": DATA,
            "mmproj-Tiny.gguf": b"x",
            "README.md": b"text",
        }
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setattr(hub_module, "RETRY_S", 0)
        monkeypatch.setattr(hub_module, "CHUNK_BYTES", 1000)
        yield hub


def nothing(n_done: int, n_all: int) -> None:
    pass


def test_names_of_repositories_and_files() -> None:
    for name, expected in (
        ("hf:a/b", HubName("a/b")),
        ("hf://a/b-GGUF", HubName("a/b-GGUF")),
        ("hf:a/b@v2:Q4_K_M", HubName("a/b", "v2", "Q4_K_M")),
        ("HF:a/b:q8_0", HubName("a/b", quantization="q8_0")),
        ("hf:a/b/q/c.gguf@x/1", HubName("a/b", "x/1", file="q/c.gguf")),
    ):
        assert parse_hub_name(name) == expected
    for name in ("hf:a", "a/b", "hf:a/b.gguf", "hf:../x", "hf:a/b c", "hf:a/b/c.txt", "hf:a/b\n"):
        assert parse_hub_name(name) is None
    part = parse_hub_name("hf:a/b/q/T-00001-of-00003.gguf@v1")
    assert part is not None
    assert (part.wanted, part.revision) == ("T", "v1")


def test_models_of_a_repository_are_its_gguf_files_the_smallest_first(hub: Hub) -> None:
    hub.files[REPO]["big/Tiny.F16-00002-of-00002.gguf"] = b"b" * 10
    hub.files[REPO]["big/Tiny.F16-00001-of-00002.gguf"] = b"a" * 20
    hub.files[REPO]["half-00001-of-00002.gguf"] = b"c"
    hub.files[REPO]["\x1b[31m.gguf"] = b"d"
    hub.listed_twice += ["half-00001-of-00002.gguf", "Tiny.Q8_0.gguf"]
    found = {model.name: (model.nbytes, len(model.parts)) for model in repository_models(REPO)}
    assert found == {
        "Tiny.F16": (30, 2),
        "Tiny.Q4_K_M": (len(DATA), 1),
        "Tiny.Q8_0": (2 * len(DATA), 1),
    }
    assert list(found) == ["Tiny.F16", "Tiny.Q4_K_M", "Tiny.Q8_0"]
    assert repository_models(REPO)[1].address == f"hf:{REPO}/Tiny.Q4_K_M.gguf"


def test_a_download_lies_where_models_are_found_and_is_the_owners(hub: Hub, tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    path = download(repository_models(REPO)[0], tmp_path, lambda *n: reported.append(n))
    assert path == tmp_path / "maker" / "Tiny-GGUF" / "Tiny.Q4_K_M.gguf"
    assert path.read_bytes() == DATA
    assert path.stat().st_mode & 0o077 == 0
    assert reported[-1] == (len(DATA), len(DATA))
    n_asked = len(hub.ranges)
    assert download(repository_models(REPO)[0], tmp_path, nothing) == path
    assert len(hub.ranges) == n_asked, "what is there is not asked for again"


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_download_resumes_where_its_connection_ended(
    hub: Hub, tmp_path: Path, is_reset: bool
) -> None:
    hub.cuts, hub.is_reset = [1000, 300_000], is_reset
    path = download(repository_models(REPO)[0], tmp_path, nothing)
    assert path.read_bytes() == DATA
    assert hub.ranges[0] is None
    assert len(hub.ranges) == 3
    if not is_reset:  # a reset may lose bytes that were sent
        assert hub.ranges[1:] == ["bytes=1000-", "bytes=301000-"]


def test_a_stopped_download_goes_on_with_the_next_try(hub: Hub, tmp_path: Path) -> None:
    model = repository_models(REPO)[0]
    n_most = 0

    def stop(n_done: int, _: int) -> None:
        nonlocal n_most
        n_most = n_done
        raise StoppedError("enough")

    hub.cuts = [300_000]
    with pytest.raises(StoppedError):
        download(model, tmp_path, stop)
    (part,) = (tmp_path / REPO).iterdir()
    part.write_bytes(DATA[:200_000])
    assert n_most > 0
    hub.ranges.clear()
    assert download(model, tmp_path, nothing).read_bytes() == DATA
    assert hub.ranges == ["bytes=200000-"]
    assert not part.exists()


def test_a_download_of_another_content_does_not_continue(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = [1000] * 50

    def stop(n_done: int, _: int) -> None:
        raise StoppedError("enough")

    with pytest.raises(StoppedError):
        download(repository_models(REPO)[0], tmp_path, stop)
    hub.cuts.clear()
    hub.files[REPO]["Tiny.Q4_K_M.gguf"] = newer = DATA[::-1]
    assert download(repository_models(REPO, "v2")[0], tmp_path, nothing).read_bytes() == newer


def test_bytes_of_another_range_are_not_appended(hub: Hub, tmp_path: Path) -> None:
    hub.cuts, hub.content_range = [1000], f"bytes 0-{len(DATA) - 1}/{len(DATA)}"
    with pytest.raises(DownloadError, match="different byte range"):
        download(repository_models(REPO)[0], tmp_path, nothing)


def test_a_split_model_is_put_together_in_one_folder(hub: Hub, tmp_path: Path) -> None:
    hub.files[REPO] = {f"q/T-0000{n}-of-00003.gguf": DATA[: n * 1000] for n in (1, 2, 3)}
    reported: list[int] = []
    path = download(repository_models(REPO)[0], tmp_path, lambda n, _: reported.append(n))
    assert path.name == "T-00001-of-00003.gguf"
    assert sorted(each.stat().st_size for each in path.parent.iterdir()) == [1000, 2000, 3000]
    assert reported == sorted(reported)
    assert reported[-1] == 6000


def test_a_wrong_checksum_installs_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.digests["Tiny.Q4_K_M.gguf"] = "0" * 64
    with pytest.raises(DownloadError, match="the checksum of"):
        download(repository_models(REPO)[0], tmp_path, nothing)
    assert list((tmp_path / REPO).iterdir()) == []


def test_a_full_disk_is_reported_before_the_download(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(DownloadError, match=r"0\.0 GB free, but Tiny\.Q4_K_M needs 0\.3 GB"):
        download(repository_models(REPO)[0], tmp_path, nothing)
    assert hub.ranges == []


def test_a_disk_that_fills_up_keeps_what_came(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = repository_models(REPO)[0]

    def fill(n_done: int, _: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(DownloadError, match=r"is full: .*Tiny\.Q4_K_M resumes"):
        download(model, tmp_path, fill)
    assert [path.suffix for path in (tmp_path / REPO).iterdir()] == [".part"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(hub: Hub, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DownloadError, match="cannot be written"):
        download(repository_models(REPO)[0], tmp_path, nothing)


def test_a_repository_that_is_not_there_gated_or_empty_is_reported(hub: Hub) -> None:
    with pytest.raises(DownloadError, match="nobody/nothing: it does not exist"):
        repository_models("nobody/nothing")
    hub.refusals["meta/gated"] = (403, "GatedRepo")
    with pytest.raises(DownloadError, match="meta/gated: the model is gated: accept its terms"):
        repository_models("meta/gated")
    hub.files["a/b"] = {"README.md": b"x"}
    with pytest.raises(DownloadError, match="a/b has no GGUF model"):
        repository_models("a/b")


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"])
def test_a_dripping_hub_is_left(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    monkeypatch.setattr(hub_module, "LISTING_S", 0.3)
    with dripping(start) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(DownloadError, match="no data"):
            repository_models(REPO)


def test_nobody_at_the_address_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"a/b: no connection to http://127\.0\.0\.1:9"):
        repository_models("a/b")


def test_a_listing_of_several_pages_is_read_to_its_end(hub: Hub) -> None:
    hub.page_size = 1
    assert [model.name for model in repository_models(REPO)] == ["Tiny.Q4_K_M", "Tiny.Q8_0"]


@pytest.mark.parametrize("url", ["http://[x", "http://[::1", "ftp://hub/x", "http://h:x/", "//["])
def test_a_next_page_that_is_no_address_is_reported(hub: Hub, url: str) -> None:
    hub.next_page = url
    with pytest.raises(DownloadError, match=REPO):
        repository_models(REPO)


def test_an_endpoint_that_is_no_address_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://[x")
    with pytest.raises(DownloadError, match=r"http://\[x"):
        repository_models(REPO)


def test_files_on_another_host_are_read_without_the_token(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving_hub() as other:
        other.files = hub.files
        hub.elsewhere = other.url
        path = download(repository_models(REPO)[0], tmp_path, nothing)
    assert path.read_bytes() == DATA
    assert set(hub.tokens) == {"Bearer hf_secret"}
    assert other.tokens == [None]


def test_a_file_that_does_not_end_is_left_and_removed(hub: Hub, tmp_path: Path) -> None:
    model = repository_models(REPO)[0]
    hub.files[REPO]["Tiny.Q4_K_M.gguf"] = DATA * 2
    with pytest.raises(DownloadError, match="is longer than the 1,048,576 bytes"):
        download(model, tmp_path, nothing)
    assert sum(path.stat().st_size for path in (tmp_path / REPO).iterdir()) == 0


def test_a_file_that_begins_again_each_time_is_given_up(hub: Hub, tmp_path: Path) -> None:
    hub.has_ranges = False
    hub.cuts = [500_000] * 50
    reported: list[int] = []
    with pytest.raises(DownloadError, match="cannot resume"):
        download(repository_models(REPO)[0], tmp_path, lambda n_done, _: reported.append(n_done))
    hub.cuts = []
    download(repository_models(REPO)[0], tmp_path, lambda n_done, _: reported.append(n_done))
    assert max(reported) == len(DATA)


def test_a_download_that_hardly_moves_is_ended(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "SLOW_S", 0.2)
    hub.pause_s = 0.5
    with pytest.raises(DownloadError, match="resumes the download"):
        download(repository_models(REPO)[0], tmp_path, nothing)


def test_a_listing_without_an_end_is_left(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "MAX_PAGE_BYTES", 50)
    for ask in (lambda: repository_models(REPO), lambda: find_repositories("tiny")):
        with pytest.raises(DownloadError, match="limit of 50 bytes"):
            ask()


@pytest.mark.parametrize("size", [-5, 0, 1 << 62])
def test_a_file_of_no_size_is_not_offered(hub: Hub, size: int) -> None:
    hub.sizes["Tiny.Q4_K_M.gguf"] = size
    assert [model.name for model in repository_models(REPO)] == ["Tiny.Q8_0"]


def test_a_checksum_that_is_none_is_refused_and_a_missing_one_known(
    hub: Hub, tmp_path: Path
) -> None:
    hub.digests |= {"Tiny.Q4_K_M.gguf": 5, "Tiny.Q8_0.gguf": None}
    odd, without = repository_models(REPO)
    assert (odd.is_checked, without.is_checked) == (True, False)
    with pytest.raises(DownloadError, match=r"Tiny.*'5'.* not a SHA-256"):
        download(odd, tmp_path, nothing)


@pytest.mark.parametrize("name", ["/tmp/x/model.gguf", "../x/model.gguf", "a/../../model.gguf"])
def test_files_outside_their_repository_are_not_offered(hub: Hub, name: str) -> None:
    hub.files[REPO] |= {name: DATA, "Q4/model.gguf": DATA}  # names with a namesake have folders
    assert name not in {part.path for model in repository_models(REPO) for part in model.parts}


def test_repositories_outside_the_folder_of_models_are_refused(hub: Hub, tmp_path: Path) -> None:
    for name in ("../..", "/tmp/tiny", "tiny", "maker/tiny@v1", "maker/tiny\n", "../tiny"):
        hub.files[name] = {}
    assert [each.name for each in find_repositories("")] == [REPO]
    outside = replace(repository_models(REPO)[0], repo="../tiny")
    with pytest.raises(DownloadError, match="not a repository"):
        download(outside, tmp_path / "models", nothing)
    assert not (tmp_path / "models").exists()


def test_offline_the_hub_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match=r"HF_HUB_OFFLINE is set: unset this variable$"):
        repository_models("a/b")


def test_files_of_one_name_in_two_folders_are_two_models(hub: Hub, tmp_path: Path) -> None:
    hub.files[REPO] = {f"{kind}/model.gguf": DATA[:size] for kind, size in (("Q4", 9), ("Q8", 99))}
    models = repository_models(REPO)
    assert [model.name for model in models] == ["Q4-model", "Q8-model"]
    paths = [download(model, tmp_path, nothing) for model in models]
    assert [path.stat().st_size for path in paths] == [9, 99]
    assert [model.address for model in models] == [f"hf:{REPO}/Q{n}/model.gguf" for n in (4, 8)]
