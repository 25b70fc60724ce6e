"""Kinds of cache under a whole model: drafts, windows and the laboratory."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")
pytest.importorskip("gguf")

from engine.backends.llama_cpp.log import NativeLog
from engine.backends.torch.backend import TorchBackend
from engine.backends.torch.caches.base import held_bytes
from engine.backends.torch.caches.tiered import Tier, TieredCache
from engine.backends.torch.hyperparameters import read_hyperparameters
from engine.configuration import ControllerName, KVTypes, PredictorName, SpeculationSettings
from engine.errors import ModelLoadError, PresetError
from engine.events import Finished
from engine.generation.session import Session
from engine.load import load_session, open_laboratory
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.torch_caches import kind_named, token_bytes
from engine.model.architecture import read_model
from engine.model.chat_template import ChatTemplate
from engine.quality.laboratory import LaboratoryFinished as Measured
from engine.quality.laboratory import LaboratoryPlan, Note
from engine.quality.request import LaboratoryRequest
from engine.quality.texts import Text
from engine.requests import Cancellation, GenerationRequest
from tests.engine.backends.torch_models import rows_of, settings
from tests.support.filled_models import filled_model

KINDS = ("q8_0", "kivi4", "paged", "means", "f16/q4_0")
EXACT = ("paged", "tiered")
"""Kinds that hold what f16 holds."""
OFF = SpeculationSettings(predictor=PredictorName.OFF)
DRAFT = SpeculationSettings(
    predictor=PredictorName.DRAFT,
    controller=ControllerName.FIXED,
    n_draft=6,
    draft_min_confidence=0.0,
)
LINE = [int(each) for each in np.random.default_rng(1).integers(3, 259, 200)]


@pytest.fixture(scope="module")
def loaded(llama: Path, log: NativeLog) -> Iterator[TorchBackend]:
    backend = TorchBackend(settings(llama), log)
    yield backend
    backend.close()


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_leave_the_text_of_a_kind_as_it_is(
    loaded: TorchBackend, llama: Path, log: NativeLog, kind: str
) -> None:
    backend = TorchBackend(settings(llama, n_ctx=512, kv_cache=kind), log, like=loaded)
    drafting = settings(llama, n_ctx=512, kv_cache="q3")
    draft = TorchBackend(drafting, log, "draft", like=loaded)
    session = Session(backend, ChatTemplate(None), OFF, draft_backend=draft)
    request = GenerationRequest(raw_prompt="a tree, a tea, a tree and a tea " * 2, max_tokens=60)
    replies = []
    for speculation in (OFF, DRAFT):
        session.set_speculation(speculation)
        *_, last = session.generate(request, Cancellation())
        assert isinstance(last, Finished)
        replies.append(last)
    plain, drafted = replies
    assert len(plain.token_ids) > 1
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.n_accepted < drafted.stats.n_verified, "some drafts were rolled back"
    session.close()


@pytest.mark.parametrize("kind", EXACT)
def test_kinds_that_move_rows_change_no_logit(
    loaded: TorchBackend, llama: Path, log: NativeLog, kind: str
) -> None:
    rows = []
    for name in ("f16", kind):
        backend = TorchBackend(settings(llama, kv_cache=name), log, like=loaded)
        rows.append(rows_of(backend, LINE))
        backend.close()
    assert np.abs(rows[0] - rows[1]).max() < 1e-4 * np.abs(rows[0]).max()


def test_a_window_that_slides_reads_as_a_whole_line_does(tmp_path: Path, log: NativeLog) -> None:
    """Gemma's windows here are of 32 tokens, in a line of 200."""
    path = filled_model(tmp_path / "gemma3.gguf", "gemma3")
    whole = TorchBackend(settings(path, swa_full=True), log)
    slides = TorchBackend(settings(path), log, like=whole)
    assert slides.kv_bytes < whole.kv_bytes
    one, other = rows_of(whole, LINE), rows_of(slides, LINE)
    assert np.abs(one - other).max() < 1e-4 * np.abs(one).max()
    slides.close()
    whole.close()


@pytest.mark.slow
def test_every_kind_has_its_row_in_the_laboratory(llama: Path) -> None:
    names = ("q4_0", "q3", "paged", "means", "turbo")
    kinds = tuple(KVTypes(name, name) for name in names)
    request = LaboratoryRequest(
        settings(llama),
        LaboratoryPlan((*kinds, KVTypes("q8_0", "f16")), takes_times=True),
        (Text("a text", "document", "a tree, a tea and a sea; " * 40),),
        n_ctx=600,
    )
    laboratory = open_laboratory(request)
    events = list(laboratory.run())
    laboratory.close()
    notes = [each.text for each in events if isinstance(each, Note)]
    assert any("turbo is not measured" in note and "kivi4" in note for note in notes)
    assert isinstance(events[-1], Measured)
    report = events[-1].report
    assert report.subject.settings["backend"] == "torch"
    assert report.subject.build.startswith("torch ")
    found = {str(row.kind): row for row in report.measurements if row.role == "candidate"}
    assert set(found) == {"q4_0", "q3", "paged", "means", "q8_0/f16"}
    losses = {name: row.scores.kl_mean.value for name, row in found.items()}
    assert losses["paged"] < 1e-6 < losses["q8_0/f16"] < losses["q4_0"] < losses["q3"]
    layers = [layer.cache for layer in read_hyperparameters(read_model(llama)).layers]
    for name, row in found.items():
        assert row.cost is not None
        n_ctx, kind = row.cost.n_ctx, kind_named(name, "f16", "f16", "f32")
        assert row.cost.kv_bytes >= (n_ctx - 64) * token_bytes(kind, layers) * 0.99, name
        assert row.cost.deep_tps > 0


ALIKE = "a tree, a tea, a tree and a tea " * 6


def answered(session: Session, prompt: str, *, owner: str = "") -> Finished:
    request = GenerationRequest(raw_prompt=prompt, max_tokens=12, owner=owner)
    *_, last = session.generate(request, Cancellation())
    assert isinstance(last, Finished)
    return last


def test_two_chats_with_one_system_prompt_go_on_in_one_pool(llama: Path) -> None:
    loaded = load_session(settings(llama, n_ctx=1024, kv_cache="paged", n_slots=2))
    for owner in ("chat:1", "chat:2", "chat:1", "chat:2"):
        reply = answered(loaded.session, ALIKE + owner, owner=owner)
        assert reply.stats.n_prompt > 256
        assert reply.stats.n_emitted
    loaded.session.close()


def test_each_operation_of_a_reply_is_traced_in_every_layer(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    loaded = load_session(settings(llama, n_ctx=512, kv_cache="q4_0", kv_trace=path))
    reply = answered(loaded.session, ALIKE)
    loaded.session.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    n_layers = len(read_hyperparameters(read_model(llama)).layers)
    last = [each for each in lines if each["name"] == "update"][-n_layers:]
    assert [each["layer"] for each in last] == list(range(n_layers))
    assert last[0]["length"] == reply.stats.n_prompt + len(reply.token_ids) - 1
    assert {each["name"] for each in lines} >= {"update", "crop"}
    assert path.stat().st_mode & 0o077 == 0
    plain = load_session(settings(llama, n_ctx=512, kv_cache="q4_0"))
    assert answered(plain.session, ALIKE).token_ids == reply.token_ids
    plain.session.close()
    with pytest.raises(ModelLoadError):
        load_session(settings(llama, kv_trace=tmp_path / "none" / "trace.jsonl"))


@pytest.mark.parametrize(
    ("kind", "plan"), [("f32", "auto"), ("f32", "7/40"), ("q8_0", "5"), ("paged", "7/40")]
)
def test_a_decode_plan_is_the_same_for_every_batch_and_changes_the_text_by_a_window_only(
    loaded: TorchBackend, llama: Path, log: NativeLog, kind: str, plan: str
) -> None:
    backend = TorchBackend(settings(llama, kv_cache=kind, decode_plan=plan), log, like=loaded)
    exact = TorchBackend(settings(llama, kv_cache=kind), log, like=loaded)
    sequence = backend.open()
    single = np.stack([sequence.decode(token).logits[0].copy() for token in LINE[:90]])
    together = rows_of_long(backend, LINE[:90])
    assert np.abs(single - together).max() < 1e-2
    far = np.abs(single - rows_of(exact, LINE[:90])).max(1)
    assert far[:40].max() < 1e-2, "the window is no longer yet"
    assert bool(far[45:].max() > 1) is (plan == "7/40")
    assert (backend.state_format == exact.state_format) is False
    backend.close()
    exact.close()


@pytest.mark.parametrize(
    ("plan", "effect"), [("7/40", "the text can differ"), ("5", "does not change the text")]
)
def test_an_active_decode_plan_is_reported(llama: Path, plan: str, effect: str) -> None:
    opened = load_session(settings(llama, decode_plan=plan))
    opened.session.close()
    assert any(effect in note for note in opened.loaded.notes)


def rows_of_long(backend: TorchBackend, tokens: list[int]) -> NDArray[np.float32]:
    sequence = backend.open()
    sequence.prefill(tokens[:64])
    head = sequence.verify(tokens[64:80]).logits.copy()
    tail = sequence.verify(tokens[80:]).logits.copy()
    sequence.crop(0)
    start = [sequence.verify(tokens[at : at + 16]).logits.copy() for at in range(0, 64, 16)]
    return np.concatenate((*start, head, tail))


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "mamba"])
@pytest.mark.parametrize("n_slots", [1, 3])
def test_a_plan_counts_the_bytes_that_torch_allocates(
    tmp_path: Path, log: NativeLog, architecture: str, n_slots: int
) -> None:
    path = filled_model(tmp_path / "model.gguf", architecture)
    kinds: list[str | None] = [None]
    torchs = ["q4_0", "kivi4/f16", "paged", "tiered"]
    kinds += ["bf16"] if architecture == "mamba" else torchs
    weights = None
    for kind in kinds:
        configuration = settings(path, n_ctx=900, n_slots=n_slots, kv_unified=True, kv_cache=kind)
        backend = TorchBackend(configuration, log, like=weights)
        weights = weights or backend
        planned = estimate(
            read_model(path), configuration, (Device("cpu", "cpu", 1 << 40, 1 << 40),)
        )
        terms = planned.devices[0].terms
        reported = {each.kind: each.nbytes for each in backend.buffers}
        assert terms[TermKind.WEIGHTS].nbytes == reported["model"]
        planned = (terms[each].nbytes for each in (TermKind.KV, TermKind.STATE) if each in terms)
        assert sum(planned) == reported["KV"], kind


def test_what_torch_alone_has_is_refused_by_llama_cpp(llama: Path, tmp_path: Path) -> None:
    changes = (
        {"decode_plan": "auto"},
        {"kv_trace": tmp_path / "trace"},
        {"compile": "on"},
        {"kv_cache": "kivi4"},
    )
    for change in changes:
        with pytest.raises(ModelLoadError, match="torch"):
            load_session(settings(llama, backend="llama.cpp", **change))


@pytest.mark.model
@pytest.mark.slow
def test_layers_of_a_real_model_lie_in_three_tiers_within_the_planned_share_and_change_no_logit(
    starter_path: Path, log: NativeLog
) -> None:
    whole = TorchBackend(settings(starter_path, kv_cache="f16"), log)
    tiered = TorchBackend(settings(starter_path, kv_cache="tiered"), log, like=whole)
    [planned] = (each.nbytes for each in tiered.buffers if each.kind == "KV")
    tiered.warm_up()
    one, other = whole.open(), tiered.open()
    for start in range(0, 192, 64):
        one.prefill(LINE[start : start + 64])
        other.prefill(LINE[start : start + 64])
    for token in LINE[192:196]:
        assert np.array_equal(one.decode(token).logits, other.decode(token).logits)
        assert held_bytes(other.caches) <= planned
    other.crop(150)
    one.crop(150)
    assert np.array_equal(one.decode(7).logits, other.decode(7).logits)
    assert {each.tier for each in other.caches if isinstance(each, TieredCache)} == {*Tier}
    tiered.close()
    whole.close()


@pytest.mark.parametrize("kv_cache", ["1xf16+q4_0", "f16/", "f16/q8_0/f16"])
def test_a_kind_that_is_misspelled_is_refused_by_plan_and_load(
    llama: Path, log: NativeLog, kv_cache: str
) -> None:
    asked = settings(llama, kv_cache=kv_cache)
    with pytest.raises(PresetError, match="no cache type"):
        estimate(read_model(llama), asked, (Device("CPU", "cpu", 1 << 34, 1 << 34),))
    with pytest.raises(ModelLoadError, match="no cache type"):
        TorchBackend(asked, log)
