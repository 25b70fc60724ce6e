"""Files of other programs become presets: INI, llama-swap, compose, systemd, LM Studio."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import PresetError
from engine.presets.importing.imported import ImportedFileError
from engine.presets.importing.text import read_text
from engine.presets.importing.yaml_part import parse_yaml

INI = """version = 1
; all of them
[*]
n-gpu-layers = all
flash-attn = on ; always
c = 1024

[small]
model = /models/small one.gguf
LLAMA_ARG_CACHE_TYPE_K = q8_0
no-kv-offload = true
load-on-startup = true
sleep-idle-seconds = 60

[large:Q4]
model = /models/large.gguf
ctx-size = 8192
parallel = 2
"""

SWAP = """
macros:
  "server": >
    /opt/llama-server --port ${PORT}
    --flash-attn on
  ctx: 4096
models:
  "qwen":
    # the one for code
    cmd: |
      # a comment
      ${server}
      --model '/models/q w.gguf' \\
      -c ${ctx} -ctk q8_0
    env:
      - "LLAMA_ARG_CACHE_TYPE_V=q8_0"
    ttl: 300
  plain:
    cmd: llama-server -m /models/p.gguf -c 512
      -ngl 4
"""

COMPOSE = """
services:
  chat:
    image: "ghcr.io/ggml-org/llama.cpp:server-cuda"
    command: ["-m", "/models/a$$b.gguf", "-c", "2048"]
    environment:
      LLAMA_ARG_N_GPU_LAYERS: 7
  other:
    command: -m /models/c.gguf --ctx-size 512
    environment:
    - LLAMA_ARG_FLASH_ATTN=on
"""

UNIT = """[Unit]
Description=mine
[Service]
Environment="LLAMA_ARG_FLASH_ATTN=on" LLAMA_ARG_N_PARALLEL=2
ExecStart=/usr/bin/llama-server \\
    -m "/models/100%% a.gguf" -c 512
"""


def test_a_section_has_what_is_said_for_all_and_its_own_over_it() -> None:
    found = read_text(INI, entry="small")
    preset = found.preset
    assert (preset.model, preset.n_ctx, preset.n_gpu_layers) == (
        "/models/small one.gguf", 1024, "all"
    )  # fmt: skip
    assert (preset.type_k, preset.flash_attention, preset.offload_kqv) == ("q8_0", "on", False)
    assert found.left_out == ("sleep-idle-seconds = 60",)
    large = read_text(INI, entry="large:Q4").preset
    assert (large.n_ctx, large.n_slots, large.offload_kqv) == (8192, 2, True)
    assert large.name == "large-Q4"


def test_a_negated_key_that_is_off_switches_on() -> None:
    assert read_text("[a]\nmodel = m.gguf\nno-kv-offload = 0\n").preset.offload_kqv


def test_several_sections_ask_which() -> None:
    with pytest.raises(ImportedFileError, match=r"say which section: small, large:Q4"):
        read_text(INI)
    with pytest.raises(ImportedFileError, match="did you mean small"):
        read_text(INI, entry="smal")


def test_a_line_that_is_no_ini_is_named() -> None:
    with pytest.raises(ImportedFileError, match="line 2"):
        read_text("[a]\nwhat is this\n")


def test_macros_comments_and_continued_lines_of_llama_swap_are_put_in() -> None:
    found = read_text(SWAP, entry="qwen")
    preset = found.preset
    assert (preset.model, preset.n_ctx) == ("/models/q w.gguf", 4096)
    assert (preset.type_k, preset.type_v, preset.flash_attention) == ("q8_0", "q8_0", "on")
    assert found.left_out == ("--port ${PORT}",)
    plain = read_text(SWAP, entry="plain").preset
    assert (plain.name, plain.n_ctx, plain.n_gpu_layers) == ("plain", 512, 4)


def test_macros_that_contain_each_other_are_refused() -> None:
    text = "macros:\n  a: x ${b}\n  b: y ${a}\nmodels:\n  m:\n    cmd: llama-server ${a}\n"
    with pytest.raises(ImportedFileError, match="contain each other"):
        read_text(text)


def test_a_service_has_its_command_and_its_environment() -> None:
    chat = read_text(COMPOSE, entry="chat").preset
    assert (chat.model, chat.n_ctx, chat.n_gpu_layers) == ("/models/a$b.gguf", 2048, 7)
    other = read_text(COMPOSE, entry="other").preset
    assert (other.n_ctx, other.flash_attention) == (512, "on")


def test_a_unit_has_its_command_and_its_environment() -> None:
    preset = read_text(UNIT).preset
    assert (preset.model, preset.n_ctx) == ("/models/100% a.gguf", 512)
    assert (preset.flash_attention, preset.n_slots) == ("on", 2)


def lm_studio(*fields: tuple[str, object]) -> str:
    listed = [{"key": key, "value": value} for key, value in fields]
    return json.dumps({"preset": "", "operation": {"fields": []}, "load": {"fields": listed}})


def test_lm_studios_types_are_read_in_both_shapes() -> None:
    text = lm_studio(
        ("llm.load.llama.kCacheQuantizationType", {"checked": True, "value": "q8_0"}),
        ("llm.load.llama.vCacheQuantizationType", "q4_0"),
    )
    assert (read_text(text).preset.type_k, read_text(text).preset.type_v) == ("q8_0", "q4_0")
    off = lm_studio(("llm.load.llama.kCacheQuantizationType", {"checked": False, "value": "q8_0"}))
    assert read_text(off).preset.type_k == "f16"


def test_a_share_of_layers_needs_the_model() -> None:
    text = lm_studio(("llm.load.llama.acceleration.offloadRatio", 0.5))
    found = read_text(text)
    assert found.left_out == ("llm.load.llama.acceleration.offloadRatio = 0.5",)
    assert read_text(text, n_layers=30).preset.n_gpu_layers == 15
    for word, layers in (("max", "all"), ("off", 0)):
        share = lm_studio(("llm.load.llama.acceleration.offloadRatio", word))
        assert read_text(share).preset.n_gpu_layers == layers


def test_fields_that_a_preset_has_no_place_for_are_listed() -> None:
    found = read_text("\ufeff" + lm_studio(("llm.load.numExperts", 4)))
    assert found.left_out == ("llm.load.numExperts = 4",)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '{"load": 3}', "models:\n\t- x", "services:\n"])
def test_broken_files_are_refused(text: str) -> None:
    with pytest.raises(ImportedFileError):
        read_text(text)


@pytest.mark.parametrize("start", ["[a]\n", "models:\n", "services:\n", "[Service]\n", "{", ""])
@given(text=st.text(st.sampled_from("ab =:-\"'[]{}|>#;$\\\n,1"), max_size=60))
def test_any_text_is_read_or_refused(start: str, text: str) -> None:
    with contextlib.suppress(PresetError):
        assert read_text(start + text).preset.name


def test_yaml_of_these_programs_is_read() -> None:
    tree = parse_yaml(
        'a: 1 # one\n\'b c\': "x: \\"y\\""\nlist:\n- x\n- k: v\n  l: w\nflow: [a, "b,c"]\n'
        "text: >-\n  one\n  two\nlast:\n"
    )
    assert tree == {
        "a": "1",
        "b c": 'x: "y"',
        "list": ["x", {"k": "v", "l": "w"}],
        "flow": ["a", "b,c"],
        "text": "one two",
        "last": "",
    }
