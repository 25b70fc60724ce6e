"""Configurations and paths as odd as users have them."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

from hypothesis import strategies as st

from engine.configuration import (
    Adapter,
    Configuration,
    ControllerName,
    DraftConfiguration,
    KVTypeName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
    TensorOverride,
)

ODD = " '\"\\$`%#;&|*?~!{}[]()<>=,:@^äß猫🦙-"
NAMES = st.text(st.sampled_from("abz019._" + ODD), min_size=1, max_size=12).filter(
    lambda name: name == name.strip() and name.strip(".") != ""
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(
    lambda names: Path("/models", *names[:-1], f"{names[-1]}.gguf")
)
KV_TYPES = st.sampled_from(get_args(KVTypeName))
SHARES = st.floats(0, 1, allow_nan=False).map(lambda share: round(share, 9))
LAYERS = st.one_of(st.just(-1), st.integers(0, 200))
PATTERNS = st.from_regex(r"blk\\\.[0-9]{1,2}\\\.ffn_(up|down|gate)_exps", fullmatch=True)
ADAPTERS = st.builds(
    Adapter,
    PATHS.map(
        lambda path: Path(str(path).replace(":", "_"))
    ),  # llama-server cuts a scale off there
    st.sampled_from([1.0, 1.0, 0.5, -0.25]),
)
WORKERS = st.sampled_from(["host1:50052", "10.0.0.2:1", "my-host.lan:65535"])
OVERRIDES = st.builds(TensorOverride, PATTERNS, st.sampled_from(["CPU", "GPU 0", "GPU 3"]))


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    """A configuration that every field of a preset can hold."""
    n_batch = draw(st.integers(1, 4096))
    predictor = draw(st.sampled_from(PredictorName))
    n_ctx = draw(st.integers(256, 2**20))
    draft = draw(
        st.builds(
            DraftConfiguration,
            PATHS,
            st.just(n_ctx),
            n_gpu_layers=LAYERS,
            type_k=KV_TYPES,
            type_v=KV_TYPES,
        )
    )
    return Configuration(
        model_path=draw(PATHS),
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=draw(st.integers(1, n_batch)),
        type_k=draw(KV_TYPES),
        type_v=draw(KV_TYPES),
        flash_attention=draw(st.sampled_from(["auto", "on", "off"])),
        n_gpu_layers=draw(LAYERS),
        n_slots=draw(st.integers(1, 8)),
        kv_unified=draw(st.booleans()),
        swa_full=draw(st.booleans()),
        offload_kqv=draw(st.booleans()),
        split_mode=draw(st.sampled_from(["layer", "none"])),
        main_gpu=draw(st.integers(0, 3)),
        tensor_split=tuple(draw(st.lists(SHARES, max_size=4))),
        rpc_workers=tuple(draw(st.lists(WORKERS, max_size=2))),
        n_cpu_moe=draw(LAYERS),
        tensor_overrides=tuple(draw(st.lists(OVERRIDES, max_size=2))),
        mmproj_path=draw(st.none() | PATHS),
        adapters=tuple(draw(st.lists(ADAPTERS, max_size=2))),
        n_threads=draw(st.none() | st.integers(1, 64)),
        n_threads_batch=draw(st.none() | st.integers(1, 64)),
        use_mmap=draw(st.booleans()),
        n_mtp_draft=draw(st.just(0) | st.integers(0, 16)),
        use_extra_buffers=draw(st.booleans()),
        draft=draft if predictor is PredictorName.DRAFT else None,
        speculation=draw(_speculations(predictor)),
        sampling=draw(_samplings()),
    )


def _speculations(predictor: PredictorName) -> st.SearchStrategy[SpeculationSettings]:
    lengths = st.integers(1, 16)
    return st.builds(
        SpeculationSettings,
        predictor=st.just(predictor),
        custom_predictor=st.just("mine" if predictor is PredictorName.CUSTOM else ""),
        controller=st.sampled_from(ControllerName),
        n_draft=lengths,
        n_draft_max=lengths,
        lookup_pattern_min=lengths,
        suffix_min_confidence=SHARES,
        draft_min_tokens=st.integers(0, 16),
        draft_min_confidence=SHARES,
    )


def _samplings() -> st.SearchStrategy[SamplingSettings]:
    return st.builds(
        SamplingSettings,
        repetition_penalty=st.floats(0.5, 2).map(lambda value: round(value, 9)),
        repetition_window=st.integers(0, 512),
        temperature=st.floats(0, 2).map(lambda value: round(value, 9)),
        top_k=st.integers(0, 200),
        top_p=st.floats(0.01, 1).map(lambda value: round(value, 9)),
        min_p=st.floats(0, 0.9).map(lambda value: round(value, 9)),
        json_schema=st.sampled_from(["", "/models/an answer.json"]),
        grammar=st.sampled_from(["", "/models/it's.gbnf"]),
        stop_tokens=st.sampled_from([(), (2,), (0, 7)]),
    )


def without_speculation(configuration: Configuration) -> Configuration:
    """The configuration with nobody drafting."""
    off = replace(configuration.speculation, predictor=PredictorName.OFF)
    return replace(configuration, draft=None, speculation=off)
