"""What a container gets beside its words, and overrides that llama-server reads otherwise."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, TensorOverride
from engine.presets.programs.base import ExportError, ExportRequest
from engine.presets.programs.formats import FORMATS
from engine.presets.programs.llama_server import arguments


def test_a_container_without_a_gpu_asks_for_none() -> None:
    configuration = Configuration(Path("/models/m.gguf"), 512)
    with_gpu = FORMATS["compose"].render(ExportRequest(configuration)).text
    without = FORMATS["compose"].render(ExportRequest(configuration, uses_gpu=False)).text
    assert "server-cuda" in with_gpu
    assert "nvidia" in with_gpu
    assert "nvidia" not in without
    assert "llama.cpp:server\n" in without


def test_links_to_other_folders_are_mounted_too(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "blobs" / "abc").touch()
    link = tmp_path / "snapshots" / "m.gguf"
    link.symlink_to(tmp_path / "blobs" / "abc")
    text = FORMATS["compose"].render(ExportRequest(Configuration(link, 512))).text
    assert f'source: "{tmp_path / "blobs"}"' in text


@pytest.mark.parametrize("pattern", ["a,b", "a=b"])
def test_a_pattern_that_llama_server_would_cut_apart_is_refused(pattern: str) -> None:
    odd = replace(Configuration(Path("/m.gguf"), 512), tensor_overrides=(TensorOverride(pattern),))
    with pytest.raises(ExportError, match="splits its overrides"):
        arguments(odd)


def test_a_router_that_puts_experts_first_is_remarked() -> None:
    configuration = replace(
        Configuration(Path("/m.gguf"), 512),
        n_cpu_moe=3,
        tensor_overrides=(TensorOverride("ffn_up_exps", "GPU 0"),),
    )
    remarks = FORMATS["models-preset"].render(ExportRequest(configuration)).remarks
    assert any("before the tensor overrides" in remark for remark in remarks)
