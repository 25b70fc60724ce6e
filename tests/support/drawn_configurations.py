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


LENGTHS = st.integers(1, 16)
THREADS = st.none() | st.integers(1, 64)


def _rounded(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda value: round(value, 9))


SAMPLINGS = st.builds(
    SamplingSettings,
    repetition_penalty=_rounded(0.5, 2),
    repetition_window=st.integers(0, 512),
    temperature=_rounded(0, 2),
    top_k=st.integers(0, 200),
    top_p=_rounded(0.01, 1),
    min_p=_rounded(0, 0.9),
    json_schema=st.sampled_from(["", "/models/an answer.json"]),
    grammar=st.sampled_from(["", "/models/it's.gbnf"]),
    stop_tokens=st.sampled_from([(), (2,), (0, 7)]),
)
DRAFTS = st.builds(
    DraftConfiguration,
    PATHS,
    st.just(0),  # the target's, once that is known
    n_gpu_layers=LAYERS,
    type_k=KV_TYPES,
    type_v=KV_TYPES,
)


def _with_predictor(predictor: PredictorName) -> st.SearchStrategy[Configuration]:
    return st.builds(
        Configuration,
        model_path=PATHS,
        n_ctx=st.integers(256, 2**20),
        n_batch=st.integers(1, 4096),
        n_ubatch=st.integers(1, 4096),
        type_k=KV_TYPES,
        type_v=KV_TYPES,
        flash_attention=st.sampled_from(["auto", "on", "off"]),
        n_gpu_layers=LAYERS,
        n_slots=st.integers(1, 8),
        kv_unified=st.booleans(),
        swa_full=st.booleans(),
        offload_kqv=st.booleans(),
        split_mode=st.sampled_from(["layer", "none"]),
        main_gpu=st.integers(0, 3),
        tensor_split=st.lists(SHARES, max_size=4).map(tuple),
        rpc_workers=st.lists(WORKERS, max_size=2).map(tuple),
        n_cpu_moe=LAYERS,
        tensor_overrides=st.lists(OVERRIDES, max_size=2).map(tuple),
        mmproj_path=st.none() | PATHS,
        adapters=st.lists(ADAPTERS, max_size=2).map(tuple),
        n_threads=THREADS,
        n_threads_batch=THREADS,
        use_mmap=st.booleans(),
        n_mtp_draft=st.just(0) | st.integers(0, 16),
        use_extra_buffers=st.booleans(),
        draft=DRAFTS if predictor is PredictorName.DRAFT else st.none(),
        speculation=st.builds(
            SpeculationSettings,
            predictor=st.just(predictor),
            controller=st.sampled_from(ControllerName),
            n_draft=LENGTHS,
            n_draft_max=LENGTHS,
            lookup_pattern_min=LENGTHS,
            suffix_min_confidence=SHARES,
            draft_min_tokens=st.integers(0, 16),
            draft_min_confidence=SHARES,
        ),
        sampling=SAMPLINGS,
    )


def _fitted(drawn: Configuration) -> Configuration:
    draft = drawn.draft and replace(drawn.draft, n_ctx=drawn.n_ctx)
    return replace(drawn, n_ubatch=min(drawn.n_ubatch, drawn.n_batch), draft=draft)


CONFIGURATIONS = st.one_of([_with_predictor(each) for each in PredictorName]).map(_fitted)
"""Configurations that every field of a preset can hold."""
