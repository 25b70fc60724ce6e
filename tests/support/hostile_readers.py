"""Every reader of what others write, and what it is given."""

import shlex
import socket
import sqlite3
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import click
import pytest
from PIL.Image import linear_gradient

from app.batch import ResultsFile, read_requests
from app.bindings import Action, read_keymap
from app.chat.attachments import attached_to, read_file
from app.chat_files import read_chats
from app.chat_files.jsonl import jsonl_of
from app.cli.options import AGE
from app.config import load_settings
from app.paths import _lm_studio, builtin_themes_dir
from app.store.chats import ChatStore
from app.store.database import connect
from app.store.records import stats_of
from app.store.schema import prepare
from app.store.sql import insert_tree
from app.themes import read_theme
from engine.backends.server.facts import ask_facts
from engine.backends.server.http import Http, TimeLimits
from engine.backends.server.served_reply import ServedReply
from engine.cache.namespace import FileHashes
from engine.cache.store import SegmentStore
from engine.cache.table import TABLE
from engine.configuration import Configuration
from engine.errors import EngineError
from engine.experiment.prompts import read_jsonl as read_prompts
from engine.experiment.records import read_results, write_results
from engine.grammar.source import read_grammar
from engine.images import READ, read_image
from engine.manifest import read_manifest
from engine.memory.cards import parse_devices
from engine.memory.estimate import Estimate, estimate
from engine.memory.server_log import read_buffers
from engine.memory.units import parse_bytes
from engine.model.architecture import Model, architecture_of
from engine.model.catalog import find_entry
from engine.model.hub import find_repositories, repository_models
from engine.model.library import scan
from engine.model.ollama import stored_models
from engine.model.remote import (
    CachedHeader,
    load_header,
    parse_address,
    read_remote,
    save_header,
)
from engine.model.speeds import ModelSpeed, Speeds
from engine.planning.measured import loaded_bytes
from engine.planning.resolve import resolve
from engine.planning.values import parse_count, parse_layers, parse_shares
from engine.policy.plans import PlanStore, plan_name, read_plan
from engine.presets.formats import read_text as read_import
from engine.presets.library import preset_toml
from engine.presets.llama_server import read_words
from engine.presets.lm_studio import merge
from engine.presets.preset import read_preset
from engine.quality.records import read_report, report_json
from engine.quality.texts import read_text_file
from engine.requests import Cancellation, GenerationRequest
from engine.speculation.cost_profile import SavedCosts
from engine.speculation.costs import CostProfile
from tests.engine.cache.making import NAMESPACE, payload_of, state_of
from tests.engine.experiment import made_results
from tests.engine.quality.made_reports import made_report
from tests.support import foreign_settings as imports
from tests.support.fuzzed_headers import DEVICES, Case, damaged, large_seed, outcome, small_seeds
from tests.support.gguf_files import header, llama_values, write
from tests.support.gguf_server import answering
from tests.support.hostile_seeds import (
    AMOUNTS,
    ANSWER,
    ATTACHED,
    BATCH,
    CHUNKED,
    COMMAND,
    DONE,
    ENVIRONMENT,
    FOLDERS,
    FOUND_IN_HUB,
    GRAMMAR,
    KOBOLD,
    LM_STUDIO,
    MANIFEST,
    MODELS,
    OLLAMA,
    PRESET,
    PRESETS,
    PROMPTS,
    REDIRECT,
    SCHEMA,
    SETTINGS,
    STREAM,
    TREE,
    TREE_OF_HUB,
    URL,
)
from tests.support.hostile_texts import damaged_texts
from tests.support.measured_reader import Reader

ACTIONS = [Action("reply-stop", ("escape",), "Stop", "end the reply", frozenset())]
LOGS = Path(__file__).parents[1] / "engine" / "memory" / "logs"
KEY = "0123"
HAS_TORCH = find_spec("torch") is not None
MAX_OF_A_LINE = 131_072
"""Bytes of an argument that Linux takes (`MAX_ARG_STRLEN`)."""


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="kvchat-hostile-"))


def _file(data: bytes, name: str = "given") -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


# --- what is planned with ---


@cache
def _model() -> Model:
    file = find_entry("smollm2-135m").header("Q4_K_M")
    return Model(file, architecture_of(file))


@cache
def _planned() -> Estimate:
    return estimate(_model(), Configuration(Path("m.gguf"), 4096), DEVICES)


def _manifest(data: bytes) -> str:
    manifest = read_manifest(_file(data, "m.toml"))
    configuration = manifest.configuration(Path)
    return f"{manifest.requests}{configuration}"


def _preset(data: bytes) -> Iterator[str]:
    preset = read_preset(_file(data, "p.toml"))
    yield preset_toml(preset)
    if preset.goal is None:
        yield str(resolve(preset, _model(), DEVICES))


def _settings(data: bytes) -> Iterator[str]:
    """The settings, and the keys that they give to an action."""
    found = load_settings(_file(data, "config.toml"))
    yield found.problem or ""
    yield from read_keymap(found.settings.keys, ACTIONS).problems


def _theme(data: bytes) -> Iterator[str]:
    try:
        yield read_theme(_file(data, "theme.toml")).name
    except ValueError as error:
        yield str(error)


def _import(data: bytes) -> Iterator[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    found = read_import(text, model="m.gguf", n_layers=30)
    yield preset_toml(found.preset)
    yield from (*found.left_out, *found.notes, found.source)


def _words(data: bytes) -> Iterator[str]:
    try:
        words = shlex.split(data[:MAX_OF_A_LINE].decode("utf-8", "surrogateescape"))
    except ValueError:
        return
    found = read_words(words)
    yield preset_toml(found.preset)
    yield from (*found.left_out, *found.notes)


def _log(data: bytes) -> Iterator[str]:
    buffers = read_buffers(_file(data, "server.log"))
    yield from loaded_bytes(buffers, _planned().devices)


def _merged(data: bytes) -> Iterator[str]:
    yield merge(data.decode("utf-8", "replace"), LM_STUDIO)


def _amounts(data: bytes) -> Iterator[str]:
    text = data.decode("utf-8", "replace")
    readers: Sequence[Callable[[str], object]] = (
        parse_bytes, parse_devices, parse_layers, parse_shares,
        partial(parse_count, low=1, high=2**31), parse_address,
        partial(AGE.convert, param=None, ctx=None),
    )  # fmt: skip
    for read in readers:
        try:
            yield str(read(text))
        except (EngineError, click.UsageError) as error:
            yield str(error)


# --- chats, benchmarks ---


@cache
def _database() -> sqlite3.Connection:
    connection = connect(Path(":memory:"))
    prepare(connection, Path("chats.db"))
    return connection


def _history(data: bytes) -> Iterator[str]:
    for tree in read_chats(BytesIO(data)):
        yield tree.chat.title
        yield from (str(stats_of(message)) for message in tree.messages)
        _database().execute("BEGIN")
        insert_tree(_database(), tree)
        _database().execute("ROLLBACK")


def _store(data: bytes) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        path = Path(folder) / "chats.db"
        path.write_bytes(data)
        store = ChatStore(path)
        try:
            yield from store.notices
            for chat in store.list_chats():
                yield chat.title
                yield from (message.content for message in store.tree(chat.id).messages)
        finally:
            store.close()


def _store_seed() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chats.db"
        store = ChatStore(path)
        store.add_trees([TREE])
        store.close()
        return path.read_bytes()


def _prompts(data: bytes) -> Iterator[str]:
    yield from (text for pair in read_prompts(_file(data)) for text in pair)


def _results(data: bytes) -> Iterator[str]:
    yield str(read_results(_file(data)).subject)


def _results_seed() -> bytes:
    path = _file(b"", "results.json")
    write_results(path, made_results.results(made_results.record({"a": 1.1}), arms=["a"]))
    return path.read_bytes()


def _quality(data: bytes) -> Iterator[str]:
    report = read_report(_file(data, "quality.json"))
    yield f"{report.subject.model}{report.started}{report.n_tokens}{report.allows_verdict}"
    yield from (text.name for text in report.texts)
    for each in report.measurements:
        cost = each.cost and each.cost.kv_bytes_per_token
        yield f"{each.kind}{cost}{each.scores.kl_mean.value + 1}"


def _batch(data: bytes) -> Iterator[str]:
    requests, broken = read_requests(_file(data, "batch.jsonl"), GenerationRequest(), "Be terse.")
    yield from (f"{each.id}{each.request}" for each in requests)
    yield from (each.reason for each in broken)


def _attachment(data: bytes) -> Iterator[str]:
    """A file that goes with a message, and the files of a saved message."""
    yield read_file(_file(data, "notes.md").name, _folder()).text
    text, files = attached_to(data.decode("utf-8", "replace"))
    yield from (text, *(file.name for file in files))


def _image(data: bytes) -> Iterator[str]:
    image = read_image(_file(data, "a"), "a")
    yield f"{image.reference} {len(image.pixels())} {len(image.portable())}"


def _image_seed(kind: str) -> bytes:
    data = BytesIO()
    picture = linear_gradient("L").resize((40, 30))
    picture.convert("RGBA" if kind == "WEBP" else "RGB").save(data, kind)
    return data.getvalue()


def _schema(data: bytes) -> Iterator[str]:
    yield read_grammar(_file(data, "s.json"), is_schema=True).name


def _grammar(data: bytes) -> Iterator[str]:
    yield read_grammar(_file(data, "g.gbnf"), is_schema=False).name


# --- what kvchat keeps ---


def _measured(data: bytes) -> Iterator[str]:
    """Measured speeds of this machine."""
    yield str(Speeds(_file(data, "measured.json")).of("identity"))


def _measured_seed() -> bytes:
    path = _folder() / "measured-seed.json"
    path.unlink(missing_ok=True)
    Speeds(path).keep("identity", ModelSpeed(9.5, 8.5, 2048, 90.0, "", "2026-01-01"))
    return path.read_bytes()


def _ollama(data: bytes) -> Iterator[str]:
    folder = _folder() / "ollama" / "manifests" / "registry.ollama.ai" / "library" / "qwen3"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "8b").write_bytes(data)
    yield from (f"{path}{name}" for path, name in stored_models(_folder() / "ollama"))


@cache
def _model_file() -> Path:
    path = _folder() / "one model" / "m.gguf"
    path.parent.mkdir()
    return write(path, header(llama_values(), [("t", (64, 3), 0, 0)]), data_bytes=768)


def _headers(data: bytes) -> Iterator[str]:
    for facts in scan([_model_file().parent], cache_path=_file(data, "headers.json")):
        texts = (facts.architecture, facts.file_type, facts.problem, facts.identity)
        yield from filter(None, texts)
        if facts.vocabulary is not None and facts.reads is not None:
            yield str((facts.n_ctx_train or 0) + facts.vocabulary.n_tokens + facts.reads.nbytes(16))


def _headers_seed() -> bytes:
    path = _file(b"", "headers.json")
    scan([_model_file().parent], cache_path=path)
    return path.read_bytes()


def _costs(data: bytes) -> Iterator[str]:
    yield str(SavedCosts(_file(data, "costs.json"), KEY).read())


def _costs_seed() -> bytes:
    SavedCosts(_file(b"", "costs.json"), KEY).write(CostProfile(((1, 1.0), (4, 1.5))))
    return (_folder() / "costs.json").read_bytes()


def _cache_plan(data: bytes) -> Iterator[str]:
    """The content under its own name, and under none."""
    path = _file(data, f"{plan_name(made_report().subject)}.json")
    yield read_plan(path).subject.model
    yield from PlanStore(path.parent).find(made_report().subject.model_identity, "x").problems


def _cache_plan_seed() -> bytes:
    store = PlanStore(_folder() / "plans")
    store.save(made_report())
    return next(store.folder.iterdir()).read_bytes()


def _digests(data: bytes) -> Iterator[str]:
    yield FileHashes(_file(data, "digests.json")).digest(_model_file())


def _remote(data: bytes) -> Iterator[str]:
    """The description of a cached header with the right header."""
    folder = _folder() / "remote"
    path = _remote_path()
    _, newline, header = path.read_bytes().partition(b"\n")
    path.write_bytes(data + newline + header)
    found = load_header(folder, URL)
    save_header(folder, URL, REMOTE)
    if found is not None:
        yield f"{found.saved}{found.etag or ''}{found.nbytes + 1}"


REMOTE = CachedHeader(b"GGUF", "tag", 9, "today")


def _remote_path() -> Path:
    save_header(_folder() / "remote", URL, REMOTE)
    return next((_folder() / "remote").iterdir())


def _remote_seed() -> bytes:
    return _remote_path().read_bytes().partition(b"\n")[0]


def _table_of_states(data: bytes) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        (Path(folder) / TABLE).write_bytes(data)
        with SegmentStore(Path(folder)) as store:
            yield f"{[each.model for each in store.namespaces()]} {store.segments()}"


def _table_seed() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with SegmentStore(Path(folder)) as store:
            state = state_of([1, 2, 3])
            store.write(NAMESPACE, state, payload_of(state))
        return (Path(folder) / TABLE).read_bytes()


N_TORCH_BYTES = 72
"""Of the elements of two tensors of 8 numbers each, and of a length."""


def _saved_torch(data: bytes) -> Iterator[str]:
    """A header of its right length, and all of the bytes as they are."""
    from engine.backends.torch.caches.saved import read_tensors

    for whole in (struct.pack("<Q", len(data)) + data + bytes(N_TORCH_BYTES), data):
        try:
            found, length = read_tensors(whole)
            yield f"{length} {[tuple(each.shape) for each in found.values()]}"
        except EngineError as error:
            yield str(error)


def _saved_torch_seed() -> bytes:
    import torch

    from engine.backends.torch.caches.saved import write_tensors

    tensors = {name: torch.zeros(2, 4) for name in ("k", "v")}
    return write_tensors(tensors, 2)[8:-N_TORCH_BYTES]


def _folders_of_others(data: bytes) -> Iterator[str]:
    """LM Studio's settings name a folder, in which models are looked for."""
    own = _folder() / "home" / ".lmstudio"
    own.mkdir(parents=True, exist_ok=True)
    (own / "settings.json").write_bytes(data)
    named = next(iter(_lm_studio(own.parent, own.parent)))
    yield from (entry.name for entry in scan([named]) if not named.is_dir())


def _text(data: bytes) -> Iterator[str]:
    yield read_text_file(_file(data, "text.md")).name


def _done(data: bytes) -> Iterator[str]:
    """Results of a batch that goes on."""
    with ResultsFile(_file(data, "done.jsonl")) as results:
        yield from (f"{name}{digest}" for name, digest in results.done())


# --- a server ---


def _listing(data: bytes) -> Iterator[str]:
    """One answer to all that the hub is asked."""
    with answering(data) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", url)
        for ask in (partial(repository_models, "a/b"), partial(find_repositories, "a", "b")):
            try:
                yield from (each.name for each in ask())
            except EngineError as error:
                yield str(error)


def _answered(data: bytes) -> Iterator[str]:
    """A whole answer, from its first line on; a second connection is refused."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer, args=(server, data))
        thread.start()
        try:
            port = server.getsockname()[1]
            yield read_remote(f"http://127.0.0.1:{port}/m.gguf", limit_s=1).name
        finally:
            thread.join()


def _answer(server: socket.socket, data: bytes) -> None:
    connection, _ = server.accept()
    server.close()
    with connection:
        connection.recv(1 << 16)
        with suppress(OSError):
            connection.sendall(data)


def _served(data: bytes) -> Iterator[str]:
    """One answer to all that a language server is asked, and as the stream of a reply."""
    with answering(data) as url:
        http = Http(url, TimeLimits(loading_s=0, pauses_s=()))
        try:
            yield str(ask_facts(http, None))
        except EngineError as error:
            yield str(error)
        reply = ServedReply(GenerationRequest(), 0, "", "")
        yield from map(str, http.stream("/x", {}, Cancellation(), reply))


ENTRIES = (
    "llama-3.2-1b", "qwen3-8b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-3-1b", "gemma-3n-e4b",
    "gemma-4-e4b", "deepseek-v2-lite", "granite-4.0-h-tiny", "lfm2-1.2b", "mamba-2.8b",
    "jamba-mini", "falcon-h1-7b", "plamo-2-8b", "rwkv-7-world-2.9b", "kimi-linear-48b-a3b",
    "qwen3-next-80b-a3b", "llama-4-scout", "deepseek-v3.2", "glm-4.5-air", "exaone-4.0-32b",
)  # fmt: skip
N_VOCAB = 152_064


def _headers_of_many(n: int, random_seed: int) -> Iterator[Case]:
    return damaged(small_seeds(ENTRIES), n, random_seed)


def _headers_of_words(n: int, random_seed: int) -> Iterator[Case]:
    return damaged([large_seed(N_VOCAB)], n, random_seed)


def _texts(
    name: str,
    read: Callable[[bytes], Iterable[str]],
    *seeds: bytes | Callable[[], bytes],
    share: float = 1.0,
) -> Reader:
    """A reader of texts; seeds that have to be made are made when they are needed."""

    def inputs(n: int, random_seed: int) -> Iterator[bytes]:
        made = [seed if isinstance(seed, bytes) else seed() for seed in seeds]
        return damaged_texts(made, n, random_seed)

    return Reader(name, inputs, read, share)


def _jsonl() -> bytes:
    return "".join(jsonl_of([TREE])).encode()


def _header(case: Case) -> Iterator[str]:
    yield outcome(case)


THEMES = [path.read_bytes() for path in sorted(builtin_themes_dir().glob("*.toml"))]
LOG_TEXTS = [path.read_bytes()[:20_000] for path in sorted(LOGS.iterdir())]
READERS = [
    Reader("GGUF header, with its estimate", _headers_of_many, _header, 3),
    Reader("GGUF header of a large vocabulary", _headers_of_words, _header, 0.03),
    _texts("preset, resolved for a machine", _preset, PRESET, *PRESETS),
    _texts("manifest of a run", _manifest, MANIFEST),
    _texts("settings", _settings, SETTINGS),
    _texts("theme", _theme, *THEMES),
    _texts("import: script, environment file", _import, COMMAND, ENVIRONMENT),
    _texts("import: words of a command", _words, COMMAND),
    _texts("import: models preset (INI)", _import, imports.INI.encode()),
    _texts("import: llama-swap", _import, imports.SWAP.encode(), imports.ANCHORS.encode()),
    _texts("import: compose", _import, imports.COMPOSE.encode(), imports.BOMB.encode()),
    _texts("import: systemd unit", _import, imports.UNIT.encode()),
    _texts("import: LM Studio", _import, LM_STUDIO.encode()),
    _texts("import: Ollama Modelfile", _import, imports.MODELFILE.encode()),
    _texts("import: koboldcpp", _import, KOBOLD),
    _texts("LM Studio's file that an export joins", _merged, LM_STUDIO.encode()),
    _texts("log of a server, compared", _log, *LOG_TEXTS),
    _texts("amounts, addresses", _amounts, *AMOUNTS),
    _texts("chats: JSON lines, saved", _history, _jsonl),
    _texts("requests of a batch", _batch, BATCH),
    _texts("file that goes with a message", _attachment, ATTACHED),
    _texts(
        "image that goes with a message", _image, *(partial(_image_seed, kind) for kind in READ)
    ),
    _texts("schema of replies", _schema, SCHEMA, share=0.3),
    _texts("grammar of replies", _grammar, GRAMMAR, share=0.3),
    _texts("manifest of Ollama's store", _ollama, OLLAMA),
    _texts("database of chats", _store, _store_seed, share=0.1),
    _texts("prompts of a benchmark", _prompts, PROMPTS),
    _texts("results of a benchmark", _results, _results_seed),
    _texts("report of cache quality", _quality, lambda: report_json(made_report()).encode()),
    _texts("text to measure a cache on", _text, ATTACHED),
    _texts("results of a batch that goes on", _done, DONE),
    _texts("LM Studio's settings", _folders_of_others, FOLDERS),
    _texts("cache of headers", _headers, _headers_seed),
    _texts("measured costs", _costs, _costs_seed),
    _texts("measured speeds", _measured, _measured_seed),
    _texts("plan of a cache", _cache_plan, _cache_plan_seed),
    _texts("digests of models", _digests, b'{"version": 1, "digests": {"a": "b"}}'),
    _texts("cached header of a remote model", _remote, _remote_seed),
    *([_texts("state of a torch cache", _saved_torch, _saved_torch_seed)] * HAS_TORCH),
    _texts("table of saved states", _table_of_states, _table_seed, share=0.1),
    _texts("answers of a language server", _served, MODELS, STREAM, share=0.3),
    _texts("listings of a hub", _listing, TREE_OF_HUB, FOUND_IN_HUB, share=0.3),
    _texts("answer of a server", _answered, ANSWER, REDIRECT, CHUNKED, share=0.3),
]
