from pathlib import Path

from engine.backends.llama_cpp.build import BUILD_ID_NOTE, build_of, library_build


def library(path: Path, build_id: bytes = b"", body: bytes = b"code") -> None:
    note = BUILD_ID_NOTE + build_id if build_id else b""
    path.write_bytes(b"\x7fELF" + b"\0" * 500 + note + b"\0" * 5000 + body)


def test_the_build_changes_with_any_library_file(tmp_path: Path) -> None:
    library(tmp_path / "libllama.so", b"a" * 20)
    library(tmp_path / "libggml-cpu.so")
    builds = {build_of(tmp_path)}
    library(tmp_path / "libllama.so", b"b" * 20)
    builds.add(build_of(tmp_path))
    library(tmp_path / "libggml-cpu.so", body=b"cade")
    builds.add(build_of(tmp_path))
    library(tmp_path / "libggml-cuda.so", b"c" * 20)
    builds.add(build_of(tmp_path))
    assert len(builds) == 4
    assert {len(build) for build in builds} == {16}


def test_other_files_beside_the_libraries_do_not_matter(tmp_path: Path) -> None:
    library(tmp_path / "libllama.so", b"a" * 20)
    before = build_of(tmp_path)
    (tmp_path / "readme.txt").write_text("hello")
    (tmp_path / "llama.h").mkdir()
    assert build_of(tmp_path) == before


def test_the_installed_library_has_a_build() -> None:
    assert int(library_build(), 16) > 0
