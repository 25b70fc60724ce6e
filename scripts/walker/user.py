"""A user at the keyboard who does anything: asks, edits, opens every screen, breaks things."""

import random
import signal
from collections.abc import Callable, Mapping

from tests.support.hostile_texts import TOKENS
from walker.home import MISDEEDS, NAMES
from walker.life import Life, Shown

ESCAPE = "\x1b[27u"
KEYS: Mapping[str, str] = {
    **{f"f{n}": code for n, code in zip(range(1, 5), ("\x1bOP", "\x1bOQ", "\x1bOR", "\x1bOS"),
                                        strict=True)},
    **{f"f{n}": f"\x1b[{code}~" for n, code in zip(range(5, 13), (15, 17, 18, 19, 20, 21, 23, 24),
                                                   strict=True)},
    **{name: f"\x1b[{code}" for name, code in
       zip(("up", "down", "right", "left", "end", "home"), "ABCDFH", strict=True)},
    **{name: f"\x1b[{code}~" for name, code in
       zip(("insert", "delete", "pageup", "pagedown"), (2, 3, 5, 6), strict=True)},
    "enter": "\r", "tab": "\t", "shift+tab": "\x1b[Z", "backspace": "\x7f", "escape": ESCAPE,
}  # fmt: skip
CONTROLS = "".join(chr(n) for n in range(1, 27) if chr(n + 96) not in "mijq")
SCREENS = ("f1", "f2", "f3", "f4", "f6", "f11", "ctrl+l", "ctrl+f", "ctrl+o", "ctrl+s",
           "ctrl+p", "ctrl+b")  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyzEGYNX0123456789 []/?+-.:,~@*_"
WORDS = ("river", "lamp", "[/x]", "stone", "~nobody/x", "garden", "winter", "漢字", "{copper}",
         "\U0001f9d1\u200d\U0001f680", "bridge", "\\", "$x^2$", "**bold**", "`code`",
         "|a|b|")  # fmt: skip
PATHS = ("~nobody/x", "../x.md", "[/x].md", "/proc/self/mem/x", "x" * 300, "a\\b", "", ".", "/",
         "chat.md", "chat.jsonl", "na\udcff.md", "-rf", "pipe.txt", "unreadable/x.md")  # fmt: skip
COMMANDS = (
    "help", "cache", "types", "chats", "new", "search", "system", "sidebar", "compare", "paste",
    "restart", "continue", "copy", "code", "edit", "see-all", "stats", "models", "plan", "presets",
    "again", "stop", "settings", "predictor", "rule", "colours", "find", "theme nord", "picture",
    "message-fork", "nothing [/x]", "variant", "fork",
)  # fmt: skip
SIZES = ((40, 10), (60, 16), (80, 24), (100, 32), (120, 36), (160, 45), (250, 60), (45, 60),
         (250, 10), (59, 15))  # fmt: skip
STRIKES = (signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)
PAGE = "A page about [a] lamp and {its} river: \x1b[31m \u202e \x07 € 漢字 1,000 tokens. "
OPENING_TRIES = 6


class User:
    """Does one random act after the other.

    Args:
        life: Where it acts.
        rng: Chooses.
        name: Start of each question's mark, which makes the question unique.
    """

    def __init__(self, life: Life, rng: random.Random, name: str) -> None:
        self._life, self._rng, self._name = life, rng, name
        self._n_asked = 0
        self.shown = Shown()
        self._acts: dict[Callable[[], None], int] = {
            self.ask: 15, self.press: 28, self.move: 22, self.open_screen: 10, self.leave: 10,
            self.click: 12, self.write: 8, self.command: 4, self.fill_in: 7, self.message_keys: 10,
            self.stop: 6, self.resize: 4, self.paste: 4, self.scroll: 6, self.name_file: 3,
            self.palette: 2, self.compare: 1, self.hurt_engine: 1,
            self.hurt_server: 2, self.restart: 2, self.hold: 1, self.ask_twice: 3, self.fork: 2,
            self.change_setting: 2, self.delete_chat: 1, self.export: 2, self.fill_context: 1,
            self.open_model: 2,
        }  # fmt: skip

    def step(self) -> str:
        """Do one act; returns its name."""
        act = self._rng.choices(list(self._acts), weights=list(self._acts.values()))[0]
        act()
        return act.__name__

    # --- asking ---

    def ask(self) -> None:
        """Ask something in the shown chat or in a new one."""
        if not self._compose():
            return
        mark = self._mark()
        words = " ".join(self._rng.choices(WORDS, k=self._rng.randrange(1, 9)))
        if self._rng.random() < 0.5:
            self._life.type(f"{mark}{words}")
        else:
            self._paste(f"{mark}{words}")
        self._life.ask(mark)

    def ask_twice(self) -> None:
        """Ask, and ask in a new chat during the reply."""
        self.ask()
        self._press("ctrl+n")
        self._life.sync()
        self.ask()

    def fill_context(self) -> None:
        """Ask with a text that fills the context, and choose one of the remedies."""
        if not self._compose():
            return
        mark = self._mark()
        self._paste(f"{mark}{PAGE * self._rng.choice((2, 5, 20))}")
        self._life.ask(mark)
        self._press("down", "up", "enter", "escape")

    def stop(self) -> None:
        """Stop the reply or the loading of a model."""
        self._press("escape")

    def message_keys(self) -> None:
        """Use the keys of a message: regenerate, edit, fork, variants, copies, colours."""
        self._press("escape", "tab")
        self._life.type("".join(self._rng.choices("kkkjjrctueEyYi[]gG/", k=3)))
        if self._rng.random() < 0.4:
            self._life.type("x\r")

    def fork(self) -> None:
        """Fork the chat at a message."""
        self._life.type(f"{ESCAPE}\tkkf")

    def _mark(self) -> str:
        self._n_asked += 1
        return f"q{self._name}-{self._n_asked} "

    def _compose(self) -> bool:
        """Focus the composer; False if that needs too many keys."""
        for _ in range(OPENING_TRIES):
            self.shown = self._life.sync()
            if self.shown.is_composing:
                break
            self._press("escape")
        else:
            return False
        if self._rng.random() < 0.25:
            self._press("ctrl+n")  # text typed before the chat opens would go to the one before
            self.shown = self._life.sync()
        if self.shown.written:
            self._life.type("\x03" if self._rng.random() < 0.8 else "")
        return True

    # --- anything ---

    def press(self) -> None:
        """Press any keys."""
        pool = (*LETTERS, *CONTROLS, *KEYS.values(), *(f"\x1b{c}" for c in "pnsofbd"))
        self._life.type("".join(self._rng.choices(pool, k=self._rng.randrange(1, 7))))

    def move(self) -> None:
        """Move through a list or a text, and choose something."""
        keys = ("up", "down", "down", "left", "right", "tab", "enter", "pagedown", "home", "end")
        self._press(*self._rng.choices(keys, k=self._rng.randrange(1, 6)))

    def write(self) -> None:
        """Type two words wherever the focus is."""
        self._life.type(" ".join(self._rng.choices(WORDS, k=2)))

    def fill_in(self) -> None:
        """Fill a field of a dialog with a path or a number."""
        self._life.type("\x01\x0b")
        self._life.type(self._rng.choice((*PATHS, "0", "-1", "1e309", "99999999999", "2048")))
        self._press("enter")

    def paste(self) -> None:
        """Paste a text, sometimes a long one."""
        length = self._rng.choice((1, 3, 40, 1500))
        odd = self._rng.choice(TOKENS).decode(errors="replace").replace("\x1b", "^[")
        self._paste(f"{odd} {self._rng.choice(WORDS)}\n\t" * length)

    def name_file(self) -> None:
        """Name a file in the composer by completion."""
        if self._compose():
            name = self._rng.choice(NAMES)[:2].decode(errors="ignore")
            self._life.type(f"@{name}" + self._rng.choice(("\t", "\t\r", "\x1b[B\t", " ")))

    def command(self) -> None:
        """Run a slash command."""
        if self._compose():
            self._life.type(f"/{self._rng.choice(COMMANDS)}")
            self._press(*self._rng.choice((("enter",), ("tab", "enter"), ("down", "enter"))))

    def palette(self) -> None:
        """Choose something in the palette, but not to quit."""
        self._press("ctrl+p")
        self._life.type(self._rng.choice(("theme", "chat", "message", "screen", "model", "[/x]")))
        self._life.sync()
        self._press(*self._rng.choice((("escape",), ("down", "down", "enter"), ("up", "escape"))))

    def open_screen(self) -> None:
        """Open any screen, and press something there."""
        self._press(self._rng.choice(SCREENS))
        if self._rng.random() < 0.6:
            self._life.sync()
            self.move()

    def leave(self) -> None:
        """Leave one screen or more."""
        self._press(*["escape"] * self._rng.randrange(1, 4))

    def click(self) -> None:
        """Click anywhere, once or twice."""
        for _ in range(self._rng.choice((1, 1, 2))):
            x, y = self._rng.randrange(1, 251), self._rng.randrange(1, 61)
            button = self._rng.choice((0, 0, 0, 2))
            self._life.type(f"\x1b[<{button};{x};{y}M\x1b[<{button};{x};{y}m")

    def scroll(self) -> None:
        """Turn the wheel, or select text."""
        x, y = self._rng.randrange(1, 120), self._rng.randrange(1, 36)
        turned = "".join(f"\x1b[<{self._rng.choice((64, 65))};{x};{y}M" for _ in range(5))
        marked = f"\x1b[<0;{x};{y}M\x1b[<32;{x + 9};{y + 2}M\x1b[<0;{x + 9};{y + 2}m"
        self._life.type(self._rng.choice((turned, marked)))

    def resize(self) -> None:
        """Resize the window, often to the usual size."""
        size = self._rng.choice(SIZES)
        self._life.resize(*(size if self._rng.random() < 0.5 else (120, 36)))

    # --- screens ---

    def compare(self) -> None:
        """Compare two configurations."""
        self._open("f4")
        self._press("enter", "down", "enter")

    def change_setting(self) -> None:
        """Change a setting."""
        self._open("f11")
        self._press(*["down"] * self._rng.randrange(1, 30), "enter")
        self._life.sync()
        self._life.type(self._rng.choice(("\x1b[B\r", "0\r", "[x\r", ESCAPE, "\x7f\r")))

    def delete_chat(self) -> None:
        """Delete, rename or archive a chat."""
        self._open("ctrl+l")
        self._press("tab", *["down"] * self._rng.randrange(0, 5))
        self._life.type(self._rng.choice(("d", "a", "r", "p", "m")))
        self._life.sync()
        self._life.type(self._rng.choice(("y", "\r", "[/x]\r", ESCAPE)))

    def export(self) -> None:
        """Export a chat, a preset or a plan to some path."""
        self._open(self._rng.choice(("ctrl+l", "f3", "f2")))
        self._life.type("x")
        self._life.sync()
        self.fill_in()

    def open_model(self) -> None:
        """Open a model of the list, or a file that is none."""
        self._open("ctrl+o")
        self._press(*["down"] * self._rng.randrange(0, 9), "enter")

    # --- faults ---

    def hurt_engine(self) -> None:
        """Kill, crash or stop the engine."""
        self._life.strike("worker", self._rng.choice(STRIKES))

    def hurt_server(self) -> None:
        """Make a server misbehave."""
        rare = ("ten megabytes", "endless text", "endless line")
        misdeed = self._rng.choice(MISDEEDS)
        if misdeed in rare and self._rng.random() < 0.8:
            misdeed = "none"
        self._life.misbehave(self._rng.randrange(8), misdeed)

    def restart(self) -> None:
        """Restart the engine."""
        self._press("ctrl+r")

    def hold(self) -> None:
        """Lock the database of chats for a moment."""
        self._life.hold_database()

    # --- keys ---

    def _open(self, key: str) -> None:
        self._press("escape", "escape", key)
        self._life.sync()

    def _press(self, *names: str) -> None:
        self._life.type("".join(map(_key, names)))

    def _paste(self, text: str) -> None:
        self._life.type(f"\x1b[200~{text}\x1b[201~")


def _key(name: str) -> str:
    return chr(ord(name[5]) - 96) if name.startswith("ctrl+") else KEYS[name]
