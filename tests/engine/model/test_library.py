import os
from pathlib import Path

import pytest

from engine.model import library
from engine.model.identity import ModelKind
from engine.model.library import (
    MAX_DEPTH,
    LibraryScan,
    ModelNotFoundError,
    find_files,
    find_model,
    projector_beside,
    scan,
)
from engine.model.starter import STARTER
from tests.support.filled_projectors import filled_projector
from tests.support.gguf_files import tiny_gguf


def names(folder: Path) -> list[str]:
    return [entry.name for entry in scan([folder])]


def test_an_entry_has_the_facts_of_its_header(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "org" / "tiny-Q4_K_M.gguf")
    (entry,) = scan([tmp_path])
    assert (entry.path, entry.name) == (path, "tiny-Q4_K_M")
    assert (entry.architecture, entry.file_type, entry.n_ctx_train) == ("llama", "Q4_K_M", 4096)
    assert entry.nbytes == path.stat().st_size
    assert entry.problem is None


def test_a_broken_file_is_listed_with_its_problem(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\0\0\0")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "nowhere")
    whole = tiny_gguf(tmp_path / "cut.gguf")
    whole.write_bytes(whole.read_bytes()[:-64])
    tiny_gguf(tmp_path / "empty.gguf", n_tensors=0)
    problems = {entry.name: entry.problem for entry in scan([tmp_path])}
    assert set(problems) == {"broken", "cut", "empty"}
    assert all(problems.values())
    assert "truncated" in (problems["cut"] or "")


def test_parts_of_models_are_given_when_they_are_asked_for(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "mmproj-model-f16.gguf")
    tiny_gguf(tmp_path / "vision.gguf", "clip")
    tiny_gguf(tmp_path / "vectors.gguf", "nomic-bert")
    tiny_gguf(tmp_path / "model.gguf")
    (tmp_path / "mmproj-broken.gguf").write_bytes(b"GGUF")
    tiny_gguf(tmp_path / ".hidden" / "a.gguf")
    tiny_gguf(tmp_path / "SHOUTED.GGUF", "qwen2")
    assert names(tmp_path) == ["SHOUTED", "model"]
    projectors = scan([tmp_path], kinds={ModelKind.PROJECTOR})
    assert [e.name for e in projectors] == ["mmproj-broken", "mmproj-model-f16", "vision"]
    assert [e.name for e in scan([tmp_path], kinds={ModelKind.EMBEDDING})] == ["vectors"]
    assert len(scan([tmp_path], kinds=list(ModelKind))) == 6


def test_a_name_never_means_a_projector(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "mmproj-gemma.gguf")
    path = tiny_gguf(tmp_path / "gemma-it.gguf")
    assert find_model("gemma", [tmp_path]) == path
    with pytest.raises(ModelNotFoundError):
        find_model("mmproj-gemma", [tmp_path])


@pytest.mark.parametrize(
    "name",
    [
        "m.gguf.part", "m.gguf.incomplete", "m.gguf.crdownload", "m.gguf.downloadInProgress",
        "m.gguf.0a1b2c3d.incomplete", "downloading_m.gguf.part", "two\nlines m.gguf.part",
    ],
)  # fmt: skip
def test_a_download_that_did_not_end_is_named_as_that(tmp_path: Path, name: str) -> None:
    tiny_gguf(tmp_path / name)
    tiny_gguf(tmp_path / "notes.txt.part")
    (entry,) = scan([tmp_path])
    assert entry.problem == "its download is not finished"
    assert entry.name.endswith("m")
    with pytest.raises(ModelNotFoundError):
        find_model("m", [tmp_path])


def test_a_split_model_is_one_entry_with_the_size_of_all_files(tmp_path: Path) -> None:
    parts = [tiny_gguf(tmp_path / f"big-0000{n}-of-00003.gguf", n_parts=3) for n in (1, 2, 3)]
    (entry,) = scan([tmp_path])
    assert (entry.name, entry.path) == ("big", parts[0])
    assert entry.nbytes == sum(part.stat().st_size for part in parts)
    assert find_model("big", [tmp_path]) == parts[0]
    parts[1].unlink()
    (entry,) = scan([tmp_path])
    assert entry.problem == "1 of its 3 files are missing"
    parts[0].unlink()
    assert scan([tmp_path]) == []


@pytest.mark.parametrize("number", [1, 2])
def test_a_whole_model_that_is_called_a_part_is_whole(tmp_path: Path, number: int) -> None:
    path = tiny_gguf(tmp_path / f"big-0000{number}-of-00002.gguf")
    (entry,) = scan([tmp_path])
    assert (entry.name, entry.problem) == (path.stem, None)
    assert find_model("big", [tmp_path]) == path


def test_a_file_that_is_reached_twice_is_listed_once(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a" / "model.gguf")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "link.gguf").symlink_to(path)
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert [e.path for e in scan([tmp_path / "a", tmp_path / "b", tmp_path])] == [path]


def test_folders_that_hold_each_other_are_entered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        for other in ("a", "b", "c"):
            (tmp_path / name / f"to-{other}").symlink_to(tmp_path / other)
    tiny_gguf(tmp_path / "a" / "model.gguf")
    seen: set[str] = set()
    real = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **k: seen.add(str(self)) or real(self, **k))
    assert names(tmp_path) == ["model"]
    assert len(seen) < 20


def test_links_that_lead_in_a_circle_are_no_models_and_no_folders(folder: Path) -> None:
    known = find_files([folder])
    for name in ("circle.gguf", "circle"):
        (folder / name).symlink_to(folder / name)
    assert find_files([folder]) == known


def test_folders_too_deep_are_not_entered(tmp_path: Path) -> None:
    inside = tmp_path.joinpath(*("d" for _ in range(MAX_DEPTH)))
    tiny_gguf(inside / "inside.gguf")
    tiny_gguf(inside / "d" / "outside.gguf")
    assert names(tmp_path) == ["inside"]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert scan([tmp_path / "nowhere", Path("/a\0b")]) == []


ODD_KIND = (
    '{"architecture": "x", "file_type": null, "n_ctx_train": null, "kind": "teapot", '
    '"identity": null, "problem": null, "vocabulary": null, "reads": null}'
)
ODD_VOCABULARY = ODD_KIND.replace("teapot", "model").replace(
    '"vocabulary": null', '"vocabulary": {"size": 3}'
)


def test_a_header_is_read_again_only_when_its_file_changed(tmp_path: Path) -> None:
    path, cache = tiny_gguf(tmp_path / "m" / "1.gguf"), tmp_path / "cache" / "models.json"
    first = scan([tmp_path / "m"], cache_path=cache)
    old = path.stat()
    with path.open("r+b") as file:
        file.write(b"nothing")
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert scan([tmp_path / "m"], cache_path=cache) == first, "it is as it was, by its stamp"
    moved = path.rename(tmp_path / "m" / "moved.gguf")
    assert [entry.problem for entry in scan([tmp_path / "m"], cache_path=cache)] == [None]
    os.utime(moved, ns=(1, 1))
    (changed,) = scan([tmp_path / "m"], cache_path=cache)
    assert changed.problem is not None


def test_a_cache_with_odd_entries_is_read_over(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m" / "1.gguf")
    cache = tmp_path / "models.json"
    for content in ("", "[]", '{"version": 0}', '{"version": 4, "models": 3}'):
        cache.write_text(content)
        assert len(scan([tmp_path / "m"], cache_path=cache)) == 1
    status = path.stat()
    stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_dev} {status.st_ino}"
    for odd in ("3", '{"kind": null}', '{"wrong": 1}', ODD_KIND, ODD_VOCABULARY):
        cache.write_text(f'{{"version": {library.VERSION}, "models": {{"{stamp}": {odd}}}}}')
        assert scan([tmp_path / "m"], cache_path=cache)[0].architecture == "llama"


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "m" / "1.gguf")
    (tmp_path / "file").write_text("in the way")
    assert len(scan([tmp_path / "m"], cache_path=tmp_path / "file" / "models.json")) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("Qwen2.5-0.5B-Instruct-Q4_K_M", "Qwen2.5-1.5B-Instruct-Q4_K_M", "gemma-3-270m"):
        tiny_gguf(tmp_path / "models" / f"{name}.gguf")
    return tmp_path / "models"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gemma-3-270m", "gemma-3-270m"),
        ("gemma-3-270m.gguf", "gemma-3-270m"),
        ("GEMMA", "gemma-3-270m"),
        ("qwen2.5 1.5b", "Qwen2.5-1.5B-Instruct-Q4_K_M"),
        ("0.5B", "Qwen2.5-0.5B-Instruct-Q4_K_M"),
    ],
)
def test_a_name_or_an_unambiguous_part_of_one_finds_the_model(
    folder: Path, name: str, found: str
) -> None:
    assert find_model(name, [folder]) == folder / f"{found}.gguf"


def test_a_path_is_taken_as_it_is_and_made_absolute(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    path = folder / "gemma-3-270m.gguf"
    for name in ("gemma-3-270m.gguf", "./gemma-3-270m.gguf", "~/gemma-3-270m.gguf", path):
        assert find_model(name, []) == path


def test_a_whole_name_wins_over_longer_ones_and_the_earlier_folder_over_later_ones(
    folder: Path, tmp_path: Path
) -> None:
    tiny_gguf(folder / "gemma-3-270m-it.gguf")
    assert find_model("gemma-3-270m", [folder]) == folder / "gemma-3-270m.gguf"
    other = tiny_gguf(tmp_path / "other" / "gemma-3-270m.gguf")
    assert find_model("gemma-3-270m", [other.parent, folder]) == other


def test_an_ambiguous_part_names_all_that_hold_it(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"matches 2 models.*0\.5B.*1\.5B"):
        find_model("qwen", [folder])


def test_an_unknown_name_names_what_is_near_and_where_it_looked(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        find_model("gema-3-27m", [folder, Path("/nowhere")])
    assert "similar: gemma-3-270m." in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "/nowhere" not in str(caught.value)
    with pytest.raises(ModelNotFoundError, match="models get qwen3-8b"):
        find_model("qwen3-8b", [folder])


def test_the_word_starter_means_the_starter_model(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="not installed"):
        find_model("starter", [folder])
    path = tiny_gguf(folder / STARTER.file_name)
    assert find_model("Starter", [folder]) == path


def test_copies_are_one_entry_that_names_them(tmp_path: Path) -> None:
    one = tiny_gguf(tmp_path / "one.gguf")
    (tmp_path / "two.gguf").write_bytes(one.read_bytes())
    (tmp_path / "link.gguf").symlink_to(one)
    tiny_gguf(tmp_path / "three.gguf", "qwen2")
    found = {entry.path.name: [path.name for path in entry.copies] for entry in scan([tmp_path])}
    assert found == {"link.gguf": ["two.gguf"], "three.gguf": []}


def test_a_folder_with_too_many_entries_is_left_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "MAX_VISITED", 100)
    tiny_gguf(tmp_path / "near.gguf")
    (tmp_path / "many").mkdir()
    for number in range(101):
        (tmp_path / "many" / f"{number}.txt").touch()
    look = LibraryScan([tmp_path], None)
    assert [entry.name for entry in look()] == ["near"]
    assert look.cut == [tmp_path]


def test_the_projector_beside_a_model_is_the_only_one_that_fits(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "model.gguf")
    assert projector_beside(model, 128) is None
    fitting = filled_projector(tmp_path / "mmproj-model-f16.gguf", n_embd=128)
    filled_projector(tmp_path / "mmproj-other.gguf", n_embd=256)
    filled_projector(tmp_path / "vision.gguf", n_embd=128)
    (tmp_path / "mmproj-broken.gguf").write_bytes(b"GGUF")
    tiny_gguf(tmp_path / "mmproj-sound.gguf", "clip")
    assert projector_beside(model, 128) == fitting
    filled_projector(tmp_path / "mmproj-model-q8.gguf", n_embd=128)
    assert projector_beside(model, 128) is None
    assert projector_beside(tmp_path / "nowhere" / "model.gguf", 128) is None


def test_a_folder_of_that_name_hides_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf(tmp_path / "models" / "qwen3.gguf")
    (tmp_path / "qwen3").mkdir()
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model("qwen3", [path.parent]) == path
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        find_model("/nowhere/model.gguf", [path.parent])
    for name in ("./qwen3", "notes"):
        with pytest.raises(ModelNotFoundError, match="is a folder"):
            find_model(name, [path.parent])
