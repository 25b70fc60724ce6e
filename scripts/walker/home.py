"""A home to walk in: tiny models, settings, odd files, and servers that misbehave."""

import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import get_args

from app.paths import APP
from tests.support.filled_models import filled_model
from tests.support.filled_projectors import filled_projector
from tests.support.hostile_language_server import Kind, LanguageServer, Misdeed, serving
from tests.support.kvchat import Kvchat
from walker.journal import JOURNAL
from walker.kills import AIM, Aim
from walker.promises import Ledger

ARCHITECTURES = ("llama", "qwen2", "gemma3", "mamba")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
THINKING = TEMPLATE.replace("[assistant]", "[assistant]<think>\n")
MISDEEDS: tuple[Misdeed, ...] = get_args(Misdeed)
KINDS: tuple[Kind, ...] = ("llama-server", "OpenAI", "Ollama", "vLLM")
NAMES = (
    b"notes.txt", b"na\xff\xfe.txt", b"[x] review.md", b"[@click=app.quit]b[].py",
    b"two\nlines.txt", b"tab\there.txt", b"~nobody", b"a b  c.txt",
    "wide 漢字 \U0001f600.txt".encode(),
    "\u202eltr.txt".encode(), b"esc\x1b]0;PWN\x07.txt", b"-rf", b"'quo\"te.txt", b"$HOME.txt",
    b"n" * 255,
)  # fmt: skip
"""Files of the user in the folder where kvchat is started; they must never change."""
MODEL_NAMES = (
    b"[red] bold [b].gguf", b"na\xff.gguf", b"two\nlines.gguf", b"m" * 250 + b".gguf",
    "\u202eturned.gguf".encode(), b"esc\x1b[31m.gguf",
)  # fmt: skip
SERVER = "server:"
SHARE_OF_AIMED = 0.3
"""Share of the lives with a kill at a chosen moment."""
PRESET = 'name = "{name}"\ndescription = "made by [the] walk"\nn_ctx = 512\n'
NOWHERE = "http://127.0.0.1:9"


def make_models(folder: Path) -> list[Path]:
    """Write models of a few hundred kilobytes that llama.cpp loads, and files that are no models.

    Returns:
        The models.
    """
    seeing = folder / "seeing"
    seeing.mkdir(parents=True)
    models = []
    for number, architecture in enumerate(ARCHITECTURES):
        template = THINKING if architecture == "qwen2" else TEMPLATE
        path = folder / f"tiny-{architecture}.gguf"
        filled_model(path, architecture, seed=number, **{"tokenizer.chat_template": template})
        models.append(path)
    models.append(seeing / "tiny-seeing.gguf")
    filled_model(models[-1], "llama", seed=9, **{"tokenizer.chat_template": TEMPLATE})
    filled_projector(seeing / "mmproj-tiny.gguf")
    for number, name in enumerate(MODEL_NAMES):
        (folder / os.fsdecode(name)).hardlink_to(models[number % len(models)])
    data = models[0].read_bytes()
    (folder / "cut.gguf").write_bytes(data[: len(data) // 2])
    (folder / "empty.gguf").touch()
    (folder / "noise.gguf").write_bytes(random.Random(1).randbytes(5000))
    (folder / "folder.gguf").mkdir()
    (folder / "loop.gguf").symlink_to(folder / "loop.gguf")
    os.mkfifo(folder / "pipe.gguf")
    return models


class Servers:
    """Servers of language models on this machine."""

    def __init__(self, servers: Sequence[LanguageServer]) -> None:
        self._servers = servers

    def misbehave(self, number: int, misdeed: Misdeed) -> None:
        """Change what a server does from now on, and end what hangs in it."""
        server = self._servers[number % len(self._servers)]
        server.misdeed = misdeed
        server.asked.clear()
        server.is_released.set()
        server.is_released.clear()

    def address(self, argument: str) -> str:
        """An argument of kvchat, with the URL in place of a server's number."""
        number = argument.removeprefix(SERVER)
        return argument if number == argument else self._servers[int(number)].url


@contextmanager
def running_servers() -> Iterator[Servers]:
    """Run one server of each kind."""
    with ExitStack() as stack:
        yield Servers([stack.enter_context(serving(kind)) for kind in KINDS])


class Home(Kvchat):
    """The folders of a user with odd files, whose settings change with each life."""

    def __init__(self, folder: Path, models: Sequence[Path]) -> None:
        super().__init__(folder)
        self.models, self._models = models[0].parent, models
        self.database = folder / "data" / APP / "chats" / "chats.db"
        self.state = folder / "state" / APP
        self.ledger = Ledger(folder / "journal", self.database)
        self.aim = ""
        """The kill of the next life as `Aim.text`; empty if there is none."""
        presets = folder / "config" / APP / "presets"
        for path in (self.state, presets, self.work / "unreadable"):
            path.mkdir(parents=True)
        for name in NAMES:
            self._file(name).write_bytes(_content(name))
        os.mkfifo(self.work / "pipe.txt")
        (self.work / "unreadable").chmod(0)
        for number, preset in enumerate(("plain", "[/x] odd", "wide 漢字")):
            (presets / f"walk{number}.toml").write_text(PRESET.format(name=preset))
        (presets / "broken.toml").write_text('name = "br\n[[[')

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of everything that runs in the home."""
        scripts = Path(__file__).resolve().parents[1]
        paths = (str(scripts), str(scripts.parent), os.environ.get("PYTHONPATH"))
        return {
            **super().environment,
            JOURNAL: str(self.folder / "journal"),
            AIM: self.aim,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "EDITOR": "true",
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
        }

    def changed_files(self) -> list[str]:
        """The user's files that changed, as sentences."""
        return [
            f"{name!r} changed" for name in NAMES
            if not self._file(name).is_file() or self._file(name).read_bytes() != _content(name)
        ]  # fmt: skip

    def _file(self, name: bytes) -> Path:
        return self.work / os.fsdecode(name)

    def copy_to(self, folder: Path) -> None:
        """Copy what one life leaves to the next."""
        ignored = shutil.ignore_patterns("pipe.txt", "unreadable", "cache")
        shutil.copytree(self.folder, folder, symlinks=True, ignore=ignored)

    def copy_from(self, folder: Path, old_folder: str) -> None:
        """Take over a copy of another home that was at `old_folder`."""
        shutil.copytree(folder, self.folder, symlinks=True, dirs_exist_ok=True)
        config = self.folder / "config" / APP / "config.toml"
        text = config.read_bytes().decode(errors="surrogateescape")
        moved = self.moved(text, old_folder)
        config.write_bytes(moved.encode(errors="surrogateescape"))

    def moved(self, text: str, old_folder: str) -> str:
        """A text with the paths of this home in place of another's."""
        old_models = str(Path(old_folder).parent / "models")
        return text.replace(old_folder, str(self.folder)).replace(old_models, str(self.models))

    def set_up(self, rng: random.Random) -> list[str]:
        """Write other settings, sometimes broken ones; returns the arguments of kvchat."""
        settings = self._settings(rng)
        aims = random.Random(settings)
        aim = Aim.at_random(self.folder / "cache" / APP / "states", aims)
        self.aim = aim.text if aims.random() < SHARE_OF_AIMED else ""
        if rng.random() < 0.06:
            at = rng.randrange(len(settings))
            settings = settings[:at] + rng.choice("[\"=\x00']}\n\xff") + settings[at + 1 :]
        self.settings(settings)
        return self._arguments(rng)

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
                "system_prompt": rng.choice(("", "Be brief [/x] and use {it}.")),
                "reopen": rng.choice(("cut", "last", "never")),
                "thinking_budget": rng.choice((0, 5)),
            },
            "speculation": {
                "predictor": rng.choice(("off", "lookup", "suffix", "combined")),
                "controller": rng.choice(("auto", "fixed")),
            },
            "models": {"default": str(rng.choice(self._models))},
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
        how = rng.random()
        if how < 0.1:
            return ["--server", f"{SERVER}{rng.randrange(len(KINDS))}"]
        if how < 0.2:
            return [str(rng.choice(self._models)), "--draft", str(self._models[0])]
        return [str(rng.choice(self._models))] if how < 0.7 else []


def _content(name: bytes) -> bytes:
    return b"The walk wrote " + name * 3 + b"\x00\xff\x1b[31m\n"
