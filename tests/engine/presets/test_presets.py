from collections.abc import Iterable
from pathlib import Path

import pytest

from engine.configuration import (
    Adapter,
    Configuration,
    TensorOverride,
)
from engine.errors import PresetError
from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.model.architecture import Model, read_model
from engine.planning.resolve import resolve
from engine.presets import library
from engine.presets.library import (
    delete_preset,
    find_preset,
    list_presets,
    preset_of,
    preset_toml,
    rename_preset,
    save_preset,
)
from engine.presets.preset import Preset, made_preset, parse_preset, read_preset
from tests.support.gguf_files import header, llama_values, write

CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
MACHINE = (CPU,)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return read_model(write(tmp_path / "my model.gguf", header(llama_values())))


def test_every_bad_key_and_value_is_named_at_once() -> None:
    text = 'name="x"\nn_ctxx=1\ntype_k="q9"\nn_ctx="big"\n[speculation]\npredictr="off"\nn_draft=99'
    with pytest.raises(PresetError) as caught:
        parse_preset(text, "mine.toml")
    message = str(caught.value)
    assert "mine.toml has 5 faults" in message
    assert "n_ctxx is an unknown key, did you mean n_ctx?" in message
    assert "speculation.predictr is an unknown key, did you mean predictor?" in message
    assert "type_k is 'q9'" in message
    assert "speculation.n_draft is 99" in message
    assert "n_ctx is 'big': input should be a valid integer" in message
    assert "or input should be 'auto' or 'max'" in message


def test_invalid_toml_and_a_missing_name_are_errors() -> None:
    with pytest.raises(PresetError, match="not valid TOML"):
        parse_preset("name = ", "x.toml")
    with pytest.raises(PresetError, match="name is missing"):
        parse_preset("n_ctx = 512", "x.toml")


def test_the_draft_predictor_without_a_draft_is_refused(model: Model) -> None:
    rules = parse_preset('name="x"\n[speculation]\npredictor="draft"', "x")
    with pytest.raises(PresetError, match="no draft model is set"):
        resolve(rules, model, MACHINE)
    drafted = resolve(rules, model, MACHINE, draft=model)
    assert drafted.draft is not None
    assert drafted.draft.n_ctx == drafted.n_ctx


def test_presets_are_renamed_and_deleted_but_not_built_in_ones(tmp_path: Path) -> None:
    path = save_preset(Preset(name="first", n_ctx=512), tmp_path)
    with pytest.raises(PresetError, match="already"):
        save_preset(Preset(name="first"), tmp_path)
    renamed = rename_preset(path, "second one", tmp_path)
    assert find_preset("second one", tmp_path).n_ctx == 512
    assert not path.exists()
    delete_preset(renamed, tmp_path)
    assert not renamed.exists()
    built_in = next(entry for entry in list_presets(tmp_path) if entry.is_builtin)
    with pytest.raises(PresetError, match="built-in"):
        delete_preset(built_in.path, tmp_path)
    with pytest.raises(PresetError, match="there is no preset 'nothing'"):
        find_preset("nothing", tmp_path)


@pytest.mark.parametrize(
    ("first", "second"), [("中文", "日本"), ("work-a", "Work A"), ("_", "preset")]
)
def test_a_preset_of_another_name_is_never_replaced(
    first: str, second: str, tmp_path: Path
) -> None:
    save_preset(Preset(name=first, n_ctx=1024), tmp_path)
    save_preset(Preset(name=second, n_ctx=2048), tmp_path)
    save_preset(Preset(name=second, n_ctx=4096), tmp_path, replace_existing=True)
    assert [find_preset(name, tmp_path).n_ctx for name in (first, second)] == [1024, 4096]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_preset_is_its_name_wherever_its_file_lies(tmp_path: Path) -> None:
    (tmp_path / "hand.toml").write_text('name = "other"')
    path = tmp_path / "zz.toml"
    path.write_text('name = "Hand"')
    with pytest.raises(PresetError, match="'Hand' exists"):
        save_preset(Preset(name="hand"), tmp_path)
    assert save_preset(Preset(name="hand", n_ctx=512), tmp_path, replace_existing=True) == path
    assert find_preset("hand", tmp_path).n_ctx == 512
    assert find_preset("other", tmp_path).n_ctx == "auto"


def test_a_new_name_takes_no_other_presets_file(tmp_path: Path) -> None:
    (tmp_path / "work-a.toml").write_text("name = 3")
    path = save_preset(Preset(name="work a"), tmp_path)
    assert path.name == "work-a-2.toml"
    with pytest.raises(PresetError, match="'work a' exists"):
        rename_preset(save_preset(Preset(name="mine"), tmp_path), "Work A", tmp_path)
    assert rename_preset(path, "Work A", tmp_path) == path
    assert save_preset(Preset(name="長" * 60), tmp_path).stem == "長" * 33


def test_a_built_in_name_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(PresetError, match="'balanced' is built in"):
        save_preset(Preset(name="Balanced"), tmp_path, replace_existing=True)
    with pytest.raises(PresetError, match="is built in"):
        rename_preset(save_preset(Preset(name="mine"), tmp_path), "balanced", tmp_path)


def test_every_rule_of_a_preset_reaches_the_configuration(starter_path: Path) -> None:
    expected = Configuration(
        model_path=starter_path,
        n_ctx=2048,
        n_batch=512,
        n_ubatch=128,
        type_k="q8_0",
        type_v="q5_1",
        flash_attention="on",
        n_gpu_layers=7,
        n_slots=2,
        kv_unified=True,
        swa_full=True,
        offload_kqv=False,
        split_mode="none",
        main_gpu=1,
        tensor_split=(3.0, 1.0),
        n_cpu_moe=-1,
        tensor_overrides=(TensorOverride("ffn_up", "GPU 1"),),
        mmproj_path=Path("/models/p.gguf"),
        mmproj_offload=False,
        adapters=(Adapter(Path("/models/l.gguf"), 0.5),),
        n_mtp_draft=2,
        n_threads=3,
        n_threads_batch=2,
        use_mmap=False,
        use_extra_buffers=False,
    )
    rules = preset_of(expected, "all of them")
    text = preset_toml(rules)
    assert parse_preset(text, "it") == rules
    assert text.index("\nn_ctx ") < text.index("\nn_threads "), "model and cache come first"
    gpus = tuple(Device(f"GPU {index}", "gpu", 24 * GIB, 24 * GIB) for index in range(2))
    assert resolve(rules, read_model(starter_path), (*gpus, CPU)) == expected


def test_a_renamed_preset_is_otherwise_unchanged(tmp_path: Path) -> None:
    settings = {
        "type_k": "f16",
        "n_ubatch": 512,
        "n_threads": "auto",
        "goal": "context",
        "lora": ["a"],
    }
    path = save_preset(made_preset({"name": "first", **settings}), tmp_path)
    renamed = read_preset(rename_preset(path, "second", tmp_path))
    assert renamed.model_fields_set == {"name", *settings}
    assert renamed == made_preset({"name": "second", **settings})


def test_a_preset_survives_a_new_name_that_is_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that ignores case has one file for both names."""
    path = tmp_path / "MyPreset.toml"
    path.write_text('name = "MyPreset"')

    def one_file(new: Path, chunks: Iterable[bytes], *, is_durable: bool) -> None:
        path.write_bytes(b"".join(chunks))
        new.hardlink_to(path)

    monkeypatch.setattr(library, "replace_file", one_file)
    rename_preset(path, "mypreset", tmp_path)
    assert read_preset(path).name == "mypreset"
