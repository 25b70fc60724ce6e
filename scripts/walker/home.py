"""A home to walk in: tiny models, settings, odd files, and servers that misbehave."""

import json
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import get_args

from app.paths import APP
from tests.support.filled_models import filled_model
from tests.support.filled_projectors import filled_projector
from tests.support.hostile_language_server import Kind, LanguageServer, Misdeed, serving
from walker import AIM, JOURNAL
from walker.kills import Aim

ARCHITECTURES = ("llama", "qwen2", "gemma3", "mamba")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
THINKING = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]<think>\n{% endif %}"
)
MISDEEDS: tuple[Misdeed, ...] = get_args(Misdeed)
KINDS: tuple[Kind, ...] = ("llama-server", "OpenAI", "Ollama", "vLLM")
NAMES = (
    b"notes.txt", b"na\xff\xfe.txt", b"[x] review.md", b"[@click=app.quit]b[].py",
    b"two\nlines.txt", b"tab\there.txt", b"~nobody", b"a b  c.txt",
    "wide 漢字 \U0001f600.txt".encode(),
    "\u202eltr.txt".encode(), b"esc\x1b]0;PWN\x07.txt", b"-rf", b"'quo\"te.txt", b"$HOME.txt",
    b"n" * 255,
)  # fmt: skip
"""Of files in the folder that kvchat is started in; their contents must stay as they are."""
MODEL_NAMES = (
    b"[red] bold [b].gguf", b"na\xff.gguf", b"two\nlines.gguf", b"m" * 250 + b".gguf",
    "\u202eturned.gguf".encode(), b"esc\x1b[31m.gguf",
)  # fmt: skip
SERVER = "server:"
SHARE_OF_AIMED = 0.3
"""Of all lives, those in which a process is killed at a chosen moment."""
PRESET = 'name = "{name}"\ndescription = "made by [the] walk"\nn_ctx = 512\n'


def make_models(folder: Path) -> list[Path]:
    """Models of a few hundred kilobytes that llama.cpp loads, and files that are none."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number, architecture in enumerate(ARCHITECTURES):
        template = THINKING if architecture == "qwen2" else TEMPLATE
        path = folder / f"tiny-{architecture}.gguf"
        filled_model(path, architecture, seed=number, **{"tokenizer.chat_template": template})
        made.append(path)
    (folder / "seeing").mkdir(exist_ok=True)
    seeing = folder / "seeing" / "tiny-seeing.gguf"
    filled_model(seeing, "llama", seed=9, **{"tokenizer.chat_template": TEMPLATE})
    filled_projector(folder / "seeing" / "mmproj-tiny.gguf")
    made.append(seeing)
    for number, name in enumerate(MODEL_NAMES):
        os.link(made[number % len(made)], os.fsencode(folder) + b"/" + name)
    whole = made[0].read_bytes()
    (folder / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.gguf").touch()
    (folder / "noise.gguf").write_bytes(random.Random(1).randbytes(5000))
    (folder / "folder.gguf").mkdir()
    (folder / "loop.gguf").symlink_to(folder / "loop.gguf")
    os.mkfifo(folder / "pipe.gguf")
    return made


class Servers:
    """Servers of language models on this machine."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.all: list[LanguageServer] = []

    def start(self) -> None:
        """Start one of each kind."""
        self.all = [self._stack.enter_context(serving(kind)) for kind in KINDS]

    def misbehave(self, number: int, misdeed: Misdeed) -> None:
        """Let a server do something from now on; what hangs in it ends."""
        server = self.all[number % len(self.all)]
        server.misdeed = misdeed
        server.asked.clear()
        server.is_released.set()
        server.is_released.clear()

    def address(self, argument: str) -> str:
        """An argument of a start, with the address of a server that it names by its number."""
        number = argument.removeprefix(SERVER)
        return argument if number == argument else self.all[int(number)].url

    def close(self) -> None:
        """End them."""
        self._stack.close()


class Home:
    """The folders that one user's kvchat has."""

    def __init__(self, folder: Path, models: Sequence[Path]) -> None:
        self.folder, self.models = folder, models
        self.work = folder / "work"
        self.journal = folder / "journal"
        self.database = folder / "data" / APP / "chats" / "chats.db"
        self.state = folder / "state" / APP
        self.config = folder / "config" / APP
        self.aim = ""
        """When a process is killed in the next life, as `walker.kills.Aim.text`; empty is never."""
        self.planted: dict[bytes, bytes] = {}
        """Contents of the files in `work` by their names."""

    def make(self) -> None:
        """Make the folders and the files in them."""
        for path in (self.work, self.state, self.config / "presets", self.folder / "models"):
            path.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            self.planted[name] = b"The walk wrote " + name * 3 + b"\x00\xff\x1b[31m\n"
            (Path(os.fsdecode(os.fsencode(self.work) + b"/" + name))).write_bytes(
                self.planted[name]
            )
        with suppress(FileExistsError):
            os.mkfifo(self.work / "pipe.txt")
        unreadable = self.work / "unreadable"
        unreadable.mkdir(exist_ok=True)
        unreadable.chmod(0)
        for number, preset in enumerate(("plain", "[/x] odd", "wide 漢字")):
            text = PRESET.format(name=preset)
            (self.config / "presets" / f"walk{number}.toml").write_text(text)
        (self.config / "presets" / "broken.toml").write_text('name = "br\n[[[')

    def set_up(self, rng: random.Random) -> list[str]:
        """Write other settings, now and then broken ones, and give the arguments of a start."""
        settings = self._settings(rng)
        aims = random.Random(settings)
        aim = Aim.at_random(self.folder / "cache" / APP / "states", aims)
        self.aim = aim.text if aims.random() < SHARE_OF_AIMED else ""
        if rng.random() < 0.06:
            at = rng.randrange(len(settings))
            settings = settings[:at] + rng.choice("[\"=\x00']}\n\xff") + settings[at + 1 :]
        (self.config / "config.toml").write_text(settings, encoding="utf-8")
        return self._arguments(rng)

    def environment(self) -> dict[str, str]:
        """The variables of everything that runs in it."""
        kinds = ("CONFIG", "DATA", "STATE", "CACHE")
        scripts = Path(__file__).resolve().parents[1]
        paths = (str(scripts), str(scripts.parent), os.environ.get("PYTHONPATH"))
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        return {
            **kept,
            **{f"XDG_{kind}_HOME": str(self.folder / kind.lower()) for kind in kinds},
            JOURNAL: str(self.journal),
            AIM: self.aim,
            "HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "KVCHAT_MODELS": str(self.models[0].parent),
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "EDITOR": "true",
            "TEXTUAL_ANIMATIONS": "none",
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"),
                            "http://127.0.0.1:9"),
            "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost",
        }  # fmt: skip

    def changed_files(self) -> list[str]:
        """The files of the user that are not as they were any more."""
        folder = os.fsencode(self.work) + b"/"
        changed = []
        for name, content in self.planted.items():
            path = Path(os.fsdecode(folder + name))
            if not path.is_file() or path.read_bytes() != content:
                changed.append(repr(name))
        return changed

    def copy_to(self, folder: Path) -> None:
        """Copy what is kept between two starts."""
        shutil.copytree(
            self.folder, folder, symlinks=True, dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("pipe.txt", "unreadable", "cache"),
        )  # fmt: skip

    def _settings(self, rng: random.Random) -> str:
        n_slots = rng.choice((1, 1, 2))
        tables: Mapping[str, Mapping[str, object]] = {
            "ui": {
                "theme": rng.choice(("kvchat-dark", "kvchat-light", "kvchat-16", "nord")),
                "graph_symbols": rng.choice(("braille", "block", "ascii")),
                "tint": rng.choice(("off", "source", "verdict")),
                "sidebar": rng.random() < 0.5,
                "animation": "none",
            },
            "chat": {
                "temperature": rng.choice((0.0, 0.7, 1.5)),
                "max_tokens": rng.choice((8, 24, 24, 60, 300)),
                "system_prompt": rng.choice(("", "Be brief [/x] and say {it}.")),
                "reopen": rng.choice(("cut", "last", "never")),
                "thinking_budget": rng.choice((0, 5)),
            },
            "speculation": {
                "predictor": rng.choice(("off", "lookup", "suffix", "combined")),
                "controller": rng.choice(("auto", "fixed")),
            },
            "models": {"default": str(rng.choice(self.models))},
            "engine": {"n_ctx": rng.choice((256, 512, 1024, 2048)), "n_threads": 1},
            "cache": {
                "enabled": rng.random() < 0.9, "warm": "8 MiB", "cold": "16 MiB",
                "min_tokens": 8, "checkpoint_tokens": 64, "reserve": "1 MiB", "slots": n_slots,
            },
            "prompts": {"[/x] review": "be strict", "plain": "be kind"},
        }  # fmt: skip
        return "\n".join(
            f"[{name}]\n"
            + "\n".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in table.items())
            for name, table in tables.items()
        )

    def _arguments(self, rng: random.Random) -> list[str]:
        """How kvchat is started this time: mostly with a model of this machine."""
        how = rng.random()
        if how < 0.1:
            return ["--server", f"{SERVER}{rng.randrange(len(KINDS))}"]
        if how < 0.2:
            return [str(rng.choice(self.models)), "--draft", str(self.models[0])]
        return [str(rng.choice(self.models))] if how < 0.7 else []
