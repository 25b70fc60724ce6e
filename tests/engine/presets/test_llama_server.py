"""A llama-server command line becomes the preset that plans the same."""

import pytest

from engine.presets.export import Imported, ImportedFileError
from engine.presets.formats import read_text
from engine.presets.llama_server import read_words


def given(command: str) -> Imported:
    return read_words(command.split())


def test_what_is_not_given_is_what_llama_server_takes() -> None:
    found = given("llama-server -m a.gguf")
    preset = found.preset
    assert (preset.n_slots, preset.kv_unified, preset.n_ctx) == (4, True, "max")
    assert preset.n_gpu_layers == "auto"
    assert preset.sampling.temperature == 0.8
    assert preset.speculation.predictor == "off"
    assert any("4 slots" in note for note in found.notes)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("-fa on", "on"), ("-fa 1", "on"), ("-fa off", "off"), ("-fa auto", "auto"), ("-fa", "on"),
     ("-fa -c 512", "on"), ("-fa -1", "auto"), ("--no-flash-attn", "off"), ("", "auto")],
)  # fmt: skip
def test_flash_attention_is_read_with_and_without_a_value(flags: str, expected: str) -> None:
    assert given(f"llama-server -m a.gguf {flags}").preset.flash_attention == expected


@pytest.mark.parametrize(
    ("layers", "expected"),
    [("all", "all"), ("auto", "auto"), ("-1", "auto"), ("-2", "all"), ("999", "all"), ("12", 12)],
)
def test_layers_are_read_in_every_spelling(layers: str, expected: int | str) -> None:
    assert given(f"-m a.gguf -ngl {layers}").preset.n_gpu_layers == expected


def test_what_a_preset_has_no_place_for_is_listed_as_it_was_written() -> None:
    found = given("llama-server -m a.gguf --host 0.0.0.0 --seed -1 --jinja --mlock -c 512 --moe=3")
    assert found.left_out == ("--host 0.0.0.0", "--seed -1", "--jinja", "--mlock", "--moe=3")
    assert found.preset.n_ctx == 512


def test_values_that_kvchat_does_not_know_are_listed() -> None:
    found = given("-m a.gguf -ctk turbo3 -sm row -c many --spec-type draft-eagle3 -ot nothing")
    text = " ".join(found.left_out)
    assert all(part in text for part in ("turbo3", "row", "many", "draft-eagle3", "nothing"))
    assert found.preset.type_k == "f16"


def test_placement_is_read() -> None:
    found = given(
        "-m a.gguf -sm none -mg 1 -ts 3,1 -ncmoe 4 -nkvo -nr --swa-full --mmproj p.gguf "
        "--no-mmproj-offload -ot blk.0=CUDA1,output=CPU --lora a.gguf --lora b.gguf"
    ).preset
    assert (found.split_mode, found.main_gpu, found.tensor_split) == ("none", 1, (3.0, 1.0))
    assert (found.n_cpu_moe, found.offload_kqv, found.use_extra_buffers) == (4, False, False)
    assert [(rule.pattern, rule.device) for rule in found.tensor_overrides] == [
        ("blk.0", "GPU 1"), ("output", "CPU")
    ]  # fmt: skip
    assert (found.mmproj, found.mmproj_offload) == ("p.gguf", False)
    assert found.lora == ("a.gguf", "b.gguf")
    assert found.swa_full


def test_how_weights_are_loaded_is_read() -> None:
    assert not given("-m a.gguf --load-mode none").preset.use_mmap
    assert not given("-m a.gguf --no-mmap").preset.use_mmap
    assert given("-m a.gguf -lm mmap").preset.use_mmap
    locked = given("-m a.gguf -lm mlock")
    assert locked.preset.use_mmap
    assert any("--load-mode mlock" in each for each in locked.left_out)


@pytest.mark.parametrize("types", ["ngram-simple,draft-simple", "draft-simple,ngram-simple"])
def test_a_draft_model_after_a_lookup_is_combined(types: str) -> None:
    found = given(
        f"-m a.gguf --spec-type {types} -md d.gguf --spec-draft-n-max 6 --spec-draft-p-min 0.3 "
        "--spec-ngram-simple-size-n 5 --spec-ngram-simple-size-m 12"
    )
    rules = found.preset.speculation
    assert (rules.predictor, rules.n_draft, rules.lookup_pattern_min) == ("combined", 6, 5)
    assert (rules.n_draft_max, rules.draft_min_confidence) == (12, 0.3)
    assert found.preset.draft is not None
    assert found.left_out == ()


def test_arguments_stand_over_the_environment() -> None:
    found = read_text(
        "LLAMA_ARG_CTX_SIZE=1024 LLAMA_ARG_FLASH_ATTN=on LLAMA_ARG_FUTURE=1 "
        "llama-server -m a.gguf -c 2048"
    )
    assert (found.preset.n_ctx, found.preset.flash_attention) == (2048, "on")
    assert found.left_out == ("LLAMA_ARG_FUTURE=1",)


def test_an_environment_file_alone_is_read() -> None:
    preset = read_text("LLAMA_ARG_MODEL=/m/a.gguf\nLLAMA_ARG_CTX_SIZE=1024\n").preset
    assert (preset.model, preset.n_ctx) == ("/m/a.gguf", 1024)


def test_a_script_with_other_commands_is_read() -> None:
    preset = read_text(
        "[ -d /models ] || exit 1\nset -e\nDIR=/models\ncd /opt/llama.cpp\n"
        './build/bin/llama-server \\\n  -m "$DIR/a b.gguf" \\\n  -c 8192 > log 2>&1 &\n'
    ).preset
    assert (preset.model, preset.n_ctx, preset.name) == ("/models/a b.gguf", 8192, "a b")


@pytest.mark.parametrize(
    "start",
    [
        "llama-server",
        "./llama-server",
        "llama serve",
        "nice -n 10 /opt/llama.cpp/llama-server",
        "env LLAMA_ARG_UBATCH=64 llama-server",
        "docker run --rm -p 8080:8080 -v /m:/m ghcr.io/ggml-org/llama.cpp:server-cuda",
        "",
    ],
)
def test_whatever_starts_the_server_is_passed_over(start: str) -> None:
    found = given(f"{start} -m /models/llama -c 512")
    assert (found.preset.model, found.preset.n_ctx) == ("/models/llama", 512)
    assert found.left_out == ()
    assert found.preset.n_ubatch == (64 if "UBATCH" in start else 512)


@pytest.mark.parametrize("text", ["", "  \n", "hello world", "# only a comment", "ls -l; pwd"])
def test_what_is_no_command_is_refused(text: str) -> None:
    with pytest.raises(ImportedFileError):
        read_text(text)


def test_impossible_values_are_listed_with_what_is_allowed() -> None:
    found = given("-m a.gguf --top-p 7 --min-p 3")
    assert [each.split(" (")[0] for each in found.left_out] == ["--top-p 7", "--min-p 3"]
    assert "less than" in found.left_out[0]


@pytest.mark.parametrize(
    ("types", "predictor", "pattern", "length"),
    [
        ("ngram-simple", "lookup", 12, 16), ("ngram-map-k", "lookup", 12, 16),
        ("ngram-map-k4v,draft-mtp", "lookup", 12, 16), ("ngram_mod", "lookup", 24, 16),
        ("ngram-cache", "lookup", 4, 8), ("none", "off", 5, 8), ("draft-dflash", "off", 5, 8),
    ],
)  # fmt: skip
def test_every_type_of_speculation_is_read_or_named(
    types: str, predictor: str, pattern: int, length: int
) -> None:
    found = given(f"-m a.gguf -c 512 -np 1 --spec-type {types}")
    rules = found.preset.speculation
    assert (rules.predictor, rules.lookup_pattern_min, rules.n_draft_max) == (
        predictor, pattern, length
    )  # fmt: skip
    assert found.preset.n_mtp_draft == (3 if "mtp" in types else 0)
    assert found.left_out == (("--spec-type draft-dflash",) if "dflash" in types else ())


def test_the_default_speculation_is_a_lookup_with_the_given_lengths() -> None:
    found = given("-m a.gguf --spec-default --spec-ngram-mod-n-match 9 --spec-ngram-mod-n-max 12")
    rules = found.preset.speculation
    assert (rules.predictor, rules.lookup_pattern_min, rules.n_draft_max) == ("lookup", 9, 12)
