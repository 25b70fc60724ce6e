"""Files of other programs become presets: INI, llama-swap, compose, systemd, LM Studio."""

import contextlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import PresetError
from engine.presets.export import ImportedFileError
from engine.presets.formats import read_text
from engine.presets.wrappers import parse_yaml
from tests.support.foreign_settings import (
    ANCHORS,
    BOMB,
    COMPOSE,
    INI,
    MODELFILE,
    SWAP,
    UNIT,
)

GOLDEN = Path(__file__).with_name("golden")


def test_a_section_overrides_the_common_settings() -> None:
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


def test_several_sections_ask_which() -> None:
    with pytest.raises(ImportedFileError, match="choose one of small, large:Q4"):
        read_text(INI)
    with pytest.raises(ImportedFileError, match="did you mean small"):
        read_text(INI, entry="smal")


def test_an_endless_list_of_adapters_is_refused() -> None:
    with pytest.raises(ImportedFileError, match="--lora"):
        read_text(f"llama-server -m a.gguf --lora {'x' * 140_000}")


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
    with pytest.raises(ImportedFileError, match="refer to each other"):
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


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (
            {"model_param": "a.gguf", "skiplauncher": True, "host": "h", "port": 5001,
             "port_param": 5001, "usecuda": ["normal", "1"], "usecpu": True, "mmproj": "p.gguf",
             "mmprojcpu": True, "usemtp": True, "draftamount": 5},
            {"split_mode": "none", "main_gpu": 1, "n_gpu_layers": 0, "mmproj_offload": False,
             "n_mtp_draft": 5},
        ),
        (
            {"models": [{"model": "a.gguf", "model_alias": "a", "logits_all": False,
                         "chat_format": "chatml", "type_k": 8,
                         "draft_model": "prompt-lookup-decoding", "draft_model_num_pred_tokens": 7,
                         "last_n_tokens_size": 32}]},
            {"name": "a", "type_k": "q8_0"},
        ),
    ],
)  # fmt: skip
def test_what_is_no_setting_of_a_preset_is_not_listed_as_left_out(
    data: dict[str, object], fields: dict[str, object]
) -> None:
    found = read_text(json.dumps(data))
    assert found.left_out == ()
    assert {name: getattr(found.preset, name) for name in fields} == fields
    if "models" in data:
        assert found.preset.speculation.n_draft == 7
        assert found.preset.speculation.predictor == "lookup"
        assert found.preset.sampling.repetition_window == 32


def test_a_share_of_layers_needs_the_model() -> None:
    text = lm_studio(("llm.load.llama.acceleration.offloadRatio", 0.5))
    found = read_text(text)
    assert found.left_out == ("llm.load.llama.acceleration.offloadRatio = 0.5",)
    assert read_text(text, n_layers=30).preset.n_gpu_layers == 15
    for word, layers in (("max", "all"), ("off", 0)):
        share = lm_studio(("llm.load.llama.acceleration.offloadRatio", word))
        assert read_text(share).preset.n_gpu_layers == layers


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '{"load": 3}', "models:\n\t- x", "services:\n"])
def test_broken_files_are_refused(text: str) -> None:
    with pytest.raises(ImportedFileError):
        read_text(text)


@pytest.mark.parametrize(
    "start", ["[a]\n", "models:\n", "services:\n", "[Service]\n", "{", "FROM a\n", ""]
)
@given(text=st.text(st.sampled_from("ab =:-\"'[]{}|>#;$\\\n,1"), max_size=60))
def test_any_text_is_read_or_refused(start: str, text: str) -> None:
    with contextlib.suppress(PresetError):
        assert read_text(start + text).preset.name


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("value"), inner),
    max_leaves=4,
)


@pytest.mark.parametrize("format_name", ["lm-studio", "koboldcpp", "llama-cpp-python"])
@given(data=st.data())
def test_any_value_of_any_key_is_read_or_refused(format_name: str, data: st.DataObject) -> None:
    text = (GOLDEN / f"{format_name}.txt").read_text(encoding="utf-8").partition("---")[0]
    found = json.loads(text)
    holders = [found, *found.get("models", []), *found.get("load", {}).get("fields", [])]
    holder = data.draw(st.sampled_from(holders))
    holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(ANY_JSON)
    with contextlib.suppress(PresetError):
        assert read_text(json.dumps(found), n_layers=30).preset.name


@pytest.mark.parametrize(
    ("service", "n_ctx"),
    [
        ("flow", 8192), ("alias", 8192), ("merged", 4096), ("lines", 8192), ("entry", 8192),
        ("several", 8192),
    ],
)  # fmt: skip
def test_no_way_to_write_yaml_loses_a_value(service: str, n_ctx: int) -> None:
    found = read_text(ANCHORS, entry=service)
    assert (found.preset.model, found.preset.n_ctx, found.preset.n_slots) == ("a.gguf", n_ctx, 2)
    assert found.left_out == ()


def test_settings_that_stand_in_other_files_are_listed() -> None:
    compose = (
        "services: {a: {command: -m a.gguf -c 512, env_file: [.env], environment: "
        "[LLAMA_ARG_N_PARALLEL, HOME, LLAMA_ARG_BATCH=]}}"
    )
    assert read_text(compose).left_out == (
        "LLAMA_ARG_N_PARALLEL (its value is not in the file)",
        "LLAMA_ARG_BATCH (its value is not in the file)",
        'env_file: [".env"]',
    )
    assert read_text(f"{UNIT}EnvironmentFile=-/etc/llama\n").left_out == (
        "EnvironmentFile=-/etc/llama",
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{BOMB}z: [{'*a, ' * 30}]", "100 aliases"),
        ("a: " + "[" * 1000, "nested too deeply"),
        ("a: &a [*a]", "recursive"),
        ("a: !reset 3", "a custom tag"),
        ("a: 1\n---\nb: 2", "not valid YAML"),
        ("a: [1\n", "not valid YAML"),
        ("? [a]\n: 1", "unhashable key"),
        ("x" * 300_000, "more than 262,144 characters"),
        ('a: "\\UFFFFFFFF"', "not valid YAML"),
    ],
)
def test_yaml_beyond_its_bounds_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ImportedFileError, match=re.escape(reason)):
        parse_yaml(text)


@pytest.mark.parametrize(
    "merges", ["<<: [" + "*a, " * 9 + "]", "<<: {<<: {<<: {<<: {<<: {A: 1}}}}}"]
)
def test_merges_in_yaml_are_bounded(merges: str) -> None:
    text = f"x: &a {{A: 1}}\nservices: {{s: {{command: -m a, environment: {{{merges}}}}}}}\n"
    with pytest.raises(ImportedFileError, match="merges too many"):
        read_text(text)


def test_a_modelfile_of_ollama_is_read() -> None:
    found = read_text(MODELFILE)
    preset = found.preset
    assert (preset.name, preset.model, preset.mmproj) == (
        "model", "./model.gguf", "./projector.gguf"
    )  # fmt: skip
    assert (preset.n_ctx, preset.n_gpu_layers, preset.lora) == (16384, 20, ("./style.gguf",))
    assert (preset.sampling.top_k, preset.sampling.repetition_penalty) == (7, 1.1)
    assert preset.system_prompt == "Be kind.\nBe brief."
    assert found.left_out == ('PARAMETER stop "<|end|>"', "TEMPLATE {{ .Prompt }}")
    assert "environment of Ollama's server" in found.notes[0]
    with pytest.raises(ImportedFileError, match="instruction: 'nonsense'"):
        read_text("FROM a.gguf\nnonsense\n")


def test_settings_of_koboldcpp_are_read_and_what_is_on_beside_them_is_listed() -> None:
    data = {
        "model_param": "/m/a b.gguf", "contextsize": 4096, "batchsize": 256,
        "noflashattention": False, "quantkv": 1, "lowvram": True, "gpulayers": -1, "moecpu": 999,
        "usecuda": ["normal", "1", "mmq"], "tensor_split": [3.0, 1.0], "threads": 4,
        "overridetensors": "exps=CPU", "lora": None, "multiuser": 5, "quiet": False,
        "gendefaults": '{"temperature": 0.5, "typical": 0.9}',
    }  # fmt: skip
    found = read_text(json.dumps(data))
    preset = found.preset
    assert (preset.name, preset.model, preset.n_ctx) == ("a b", "/m/a b.gguf", 4096)
    assert (preset.n_batch, preset.n_ubatch, preset.type_k, preset.type_v) == (
        256, 256, "q8_0", "q8_0"
    )  # fmt: skip
    assert (preset.flash_attention, preset.offload_kqv, preset.n_gpu_layers) == (
        "on", False, "auto"
    )  # fmt: skip
    assert (preset.split_mode, preset.main_gpu, preset.n_cpu_moe) == ("none", 1, "all")
    assert preset.tensor_overrides[0].pattern == "exps"
    assert preset.sampling.temperature == 0.5
    assert found.left_out == ("gendefaults typical = 0.9", "multiuser = 5")


def test_headings_in_the_system_prompt_of_a_modelfile_are_no_comments() -> None:
    prompt = "# Role\nYou are terse.\n# Rules: OLLAMA_NUM_PARALLEL=9\n- one"
    found = read_text(f'# OLLAMA_NUM_PARALLEL=2\nFROM a.gguf\nSYSTEM """{prompt}"""\n# the end\n')
    assert (found.preset.system_prompt, found.preset.n_slots) == (prompt, 2)


def test_a_server_model_without_an_alias_has_the_name_of_its_file() -> None:
    for alias in ("", 5, None):
        text = json.dumps({"models": [{"model": "/m/tiny.gguf", "model_alias": alias}]})
        assert read_text(text).preset.name == "tiny"
