"""A manifest holds all of a run, and takes no other files for its own."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.namespace import FileHashes
from engine.configuration import (
    Adapter,
    Configuration,
    ControllerName,
    DraftConfiguration,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.errors import PresetError
from engine.manifest import (
    Hashes,
    Manifest,
    ManifestError,
    RecordedReply,
    check_hashes,
    hashes_of,
    made_manifest,
    read_manifest,
    write_manifest,
)
from engine.requests import GenerationRequest, Message
from tests.support.drafting_models import drafting_model

DIGESTS = Hashes(model=("ab" * 32,))
REQUEST = GenerationRequest(
    messages=(Message("system", "Be terse."), Message("user", "Hello")),
    sampling=SamplingSettings(temperature=0.8, top_k=40),
    max_tokens=50,
    stop=("###",),
    seed=2**63 - 1,
)
FULL = Configuration(
    model_path=Path("/models/a.gguf"),
    n_ctx=4096,
    type_k="q8_0",
    type_v="q4_0",
    flash_attention="on",
    n_gpu_layers=12,
    n_cpu_moe=-1,
    n_threads=6,
    n_threads_batch=8,
    n_slots=2,
    kv_unified=True,
    adapters=(Adapter(Path("/models/x.gguf"), 0.5),),
    draft=DraftConfiguration(Path("/models/b.gguf"), 4096, n_gpu_layers=3, type_k="q8_0"),
    speculation=SpeculationSettings(
        predictor=PredictorName.DRAFT, controller=ControllerName.FIXED, n_draft=5
    ),
    sampling=REQUEST.sampling,
)
FEW = Configuration(model_path=Path("/models/a.gguf"), n_ctx=512, n_threads=1, n_threads_batch=1)


def made(configuration: Configuration = FULL, **changes: object) -> Manifest:
    values = {
        "prompts": ("Hello",),
        "system": "Be terse.",
        "request": REQUEST,
        "hashes": DIGESTS,
        "made_with": "tests",
        **changes,
    }
    return made_manifest(configuration, **values)  # type: ignore[arg-type]  # by name


def written(manifest: Manifest, tmp_path: Path) -> Manifest:
    path = tmp_path / "run.toml"
    write_manifest(manifest, path)
    return read_manifest(path)


@pytest.mark.parametrize("configuration", [FULL, FEW], ids=["full", "few"])
def test_the_configuration_comes_back_as_it_was(
    configuration: Configuration, tmp_path: Path
) -> None:
    again = written(made(configuration), tmp_path).configuration(Path)
    assert again == configuration.without_drafts


def test_the_request_comes_back_as_it_was(tmp_path: Path) -> None:
    assert written(made(), tmp_path).requests == (REQUEST,)
    raw = replace(REQUEST, messages=(), raw_prompt="Hello", max_tokens=None)
    assert written(made(request=raw, system=""), tmp_path).requests == (raw,)


@given(
    prompts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1),
    stop=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
)
def test_any_text_comes_back_as_it_was(
    prompts: list[str], stop: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    asked = replace(REQUEST, stop=tuple(stop))
    again = written(made(prompts=tuple(prompts), request=asked), folder)
    assert again.prompts == tuple(prompts)
    assert again.stop == tuple(stop)


def test_a_text_with_half_of_a_character_makes_none() -> None:
    with pytest.raises(ManifestError, match="surrogate pair"):
        made(prompts=("a\udc80",))


def test_a_run_without_a_seed_makes_none() -> None:
    with pytest.raises(ManifestError, match="seed"):
        made(request=replace(REQUEST, seed=None))


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    write_manifest(made(), path)
    assert path.stat().st_mode & 0o777 == 0o600


def damaged(tmp_path: Path, old: str, new: str) -> Path:
    path = tmp_path / "run.toml"
    write_manifest(made(), path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "version is 2"),
        ("seed = 9223372036854775807", "seed = -1", "seed is -1"),
        ("raw = false", "rawer = false", "rawer is an unknown key, did you mean raw"),
        ('prompts = ["Hello"]', "prompts = []", "prompts"),
        ('model = ["abab', 'model = ["xx', "hashes.model"),
        ("n_ctx = 4096", "n_ctx = -4", "preset.n_ctx"),
        ("temperature = 0.8", "temperature = 99.0", "preset.sampling.temperature"),
        ("version = 1", "version = [", "not valid TOML"),
    ],
)
def test_a_fault_is_named_with_its_key(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=message):
        read_manifest(damaged(tmp_path, old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [("n_ctx = 4096", 'n_ctx = "auto"'), ('type_k = "q8_0"', 'type_k = "auto"'),
     ("n_gpu_layers = 12", 'n_gpu_layers = "auto"')],
)  # fmt: skip
def test_what_is_left_to_the_machine_is_refused(old: str, new: str, tmp_path: Path) -> None:
    manifest = read_manifest(damaged(tmp_path, old, new))
    with pytest.raises(PresetError, match=f"{old.split()[0]} must have a fixed"):
        manifest.configuration(Path)


def test_a_missing_or_invalid_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        read_manifest(tmp_path / "none.toml")
    with pytest.raises(ManifestError, match="cannot be read"):
        read_manifest(tmp_path)


def test_replies_are_as_many_as_prompts_or_none(tmp_path: Path) -> None:
    reply = RecordedReply(finish_reason="end", token_ids=(1, 2))
    one = made().model_copy(update={"replies": (reply,)})
    assert written(one, tmp_path).replies == (reply,)
    with pytest.raises(ManifestError, match="1 prompts and 2 replies"):
        written(one.model_copy(update={"replies": (reply, reply)}), tmp_path)


def test_a_model_with_other_content_is_refused_and_a_copy_is_not(tmp_path: Path) -> None:
    hash_file = FileHashes(None).digest
    own = drafting_model(tmp_path / "own.gguf", 1)
    configuration = replace(FULL, model_path=own, adapters=(), draft=None)
    manifest = made(configuration, hashes=hashes_of(configuration, hash_file))
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(own.read_bytes())
    check_hashes(manifest, replace(configuration, model_path=copy), hash_file)
    data = bytearray(own.read_bytes())
    data[-1] ^= 1  # one bit of the weights
    copy.write_bytes(data)
    with pytest.raises(ManifestError, match=r"the model file differs: .*copy.gguf has"):
        check_hashes(manifest, replace(configuration, model_path=copy), hash_file)
