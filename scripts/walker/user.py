"""Someone at the keyboard who does anything: asks, edits, opens every screen, breaks things."""

import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tests.support.hostile_language_server import Misdeed
from tests.support.hostile_texts import TOKENS
from walker.home import MISDEEDS, NAMES

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


@dataclass(frozen=True, slots=True)
class Shown:
    """What the watched program answered to a probe."""

    screen: str = ""
    focus: str = ""
    n_screens: int = 1
    written: str = ""
    """How what stands in the composer begins."""
    n_waiting: int = 0
    is_replying: bool = False
    is_quiet: bool = True

    @property
    def is_composing(self) -> bool:
        """Whether what is typed becomes a question."""
        return self.screen == "ChatScreen" and self.focus == "composer"


class Hands(Protocol):
    """Everything that a user does to kvchat, its machine and its servers."""

    def type(self, text: str) -> None:
        """Press keys, written as a terminal sends them."""

    def resize(self, width: int, height: int) -> None:
        """Give the terminal another size."""

    def strike(self, whom: str, number: int) -> None:
        """Send a signal to the `worker` or the `app`."""

    def misbehave(self, number: int, misdeed: Misdeed) -> None:
        """Let a server do something else from now on."""

    def hold_database(self) -> None:
        """Write to the chats from another program for a moment."""

    def ask(self, text: str) -> None:
        """Press enter behind a question that stands in the composer; it must be saved."""

    def sync(self) -> Shown:
        """Wait until everything so far is handled and painted."""


Act = Callable[[], None]


class User:
    """Chooses what is done next, by a seed."""

    def __init__(self, hands: Hands, rng: random.Random, name: str) -> None:
        """Begin.

        Args:
            hands: Do it.
            rng: Says what.
            name: Begins the mark of each question, so that no two are alike.
        """
        self._hands, self._rng, self._name = hands, rng, name
        self._n_asked = 0
        self.shown = Shown()
        self._acts: dict[Act, int] = {
            self.ask: 15, self.press: 28, self.move: 22, self.open_screen: 10, self.leave: 10,
            self.click: 12, self.write: 8, self.command: 4, self.fill_in: 7, self.message_keys: 10,
            self.stop: 6, self.resize: 4, self.paste: 4, self.scroll: 6, self.name_file: 3,
            self.palette: 2, self.compare: 1, self.hurt_engine: 1,
            self.hurt_server: 2, self.restart: 2, self.hold: 1, self.ask_twice: 3, self.fork: 2,
            self.change_setting: 2, self.delete_chat: 1, self.export: 2, self.fill_context: 1,
            self.open_model: 2,
        }  # fmt: skip

    def step(self) -> str:
        """Do one thing, and give its name."""
        act = self._rng.choices(list(self._acts), weights=list(self._acts.values()))[0]
        act()
        return act.__name__

    # --- asking ---

    def ask(self) -> None:
        """Ask something in the shown chat, often a new one."""
        if not self._compose():
            return
        mark = self._mark()
        words = " ".join(self._rng.choices(WORDS, k=self._rng.randrange(1, 9)))
        if self._rng.random() < 0.5:
            self._hands.type(f"{mark}{words}")
        else:
            self._paste(f"{mark}{words}")
        self._hands.ask(mark)

    def ask_twice(self) -> None:
        """Ask, and ask in another chat while the first is answered."""
        self.ask()
        self._press("ctrl+n")
        self._hands.sync()
        self.ask()

    def fill_context(self) -> None:
        """Ask with so much text that the context is full, and take what is offered."""
        if not self._compose():
            return
        mark = self._mark()
        self._paste(f"{mark}{PAGE * self._rng.choice((2, 5, 20))}")
        self._hands.ask(mark)
        self._keys("down", "up", "enter", "escape")

    def stop(self) -> None:
        """Stop the reply, or what is loaded."""
        self._press("escape")

    def message_keys(self) -> None:
        """Do something with a message: regenerate, edit, fork, variants, copies, colours."""
        self._press("escape")
        self._press("tab")
        self._hands.type("".join(self._rng.choices("kkkjjrctueEyYi[]gG/", k=3)))
        if self._rng.random() < 0.4:
            self._hands.type("x\r")

    def fork(self) -> None:
        """Go on from a message in a new chat."""
        self._hands.type(f"{ESCAPE}\tkkf")

    def _mark(self) -> str:
        """What a question begins with, and no other."""
        self._n_asked += 1
        return f"q{self._name}-{self._n_asked} "

    def _compose(self) -> bool:
        """Go to the composer, as a user does who sees where they are; False where they give up."""
        for _ in range(OPENING_TRIES):
            self.shown = self._hands.sync()
            if self.shown.is_composing:
                break
            self._press("escape")
        else:
            return False
        if self._rng.random() < 0.25:
            self._press("ctrl+n")  # what is typed before it is done goes to the chat before
            self.shown = self._hands.sync()
        if self.shown.written:
            self._hands.type("\x03" if self._rng.random() < 0.8 else "")
        return True

    # --- anything ---

    def press(self) -> None:
        """Press any keys."""
        pool = (*LETTERS, *CONTROLS, *KEYS.values(), *(f"\x1b{c}" for c in "pnsofbd"))
        self._hands.type("".join(self._rng.choices(pool, k=self._rng.randrange(1, 7))))

    def move(self) -> None:
        """Go through a list or a text, and take something."""
        keys = ("up", "down", "down", "left", "right", "tab", "enter", "pagedown", "home", "end")
        self._keys(*self._rng.choices(keys, k=self._rng.randrange(1, 6)))

    def write(self) -> None:
        """Write something wherever that goes."""
        self._hands.type(" ".join(self._rng.choices(WORDS, k=2)))

    def fill_in(self) -> None:
        """Fill a field of a dialog with a path or a number."""
        self._hands.type("\x01\x0b")
        self._hands.type(self._rng.choice((*PATHS, "0", "-1", "1e309", "99999999999", "2048")))
        self._press("enter")

    def paste(self) -> None:
        """Paste a text, sometimes a long one."""
        length = self._rng.choice((1, 3, 40, 1500))
        odd = self._rng.choice(TOKENS).decode(errors="replace").replace("\x1b", "^[")
        self._paste(f"{odd} {self._rng.choice(WORDS)}\n\t" * length)

    def name_file(self) -> None:
        """Name a file in the composer, by its completion."""
        if self._compose():
            name = self._rng.choice(NAMES)[:2].decode(errors="ignore")
            self._hands.type(f"@{name}" + self._rng.choice(("\t", "\t\r", "\x1b[B\t", " ")))

    def command(self) -> None:
        """Command something by its name."""
        if self._compose():
            self._hands.type(f"/{self._rng.choice(COMMANDS)}")
            self._keys(*self._rng.choice((("enter",), ("tab", "enter"), ("down", "enter"))))

    def palette(self) -> None:
        """Choose by the palette; never to end."""
        self._hands.type(self._key("ctrl+p"))
        text = self._rng.choice(("theme", "chat", "message", "screen", "model", "[/x]"))
        self._hands.type(text)
        self._hands.sync()
        self._keys(*self._rng.choice((("escape",), ("down", "down", "enter"), ("up", "escape"))))

    def open_screen(self) -> None:
        """Open any screen, and press something there."""
        self._press(self._rng.choice(SCREENS))
        if self._rng.random() < 0.6:
            self._hands.sync()
            self.move()

    def leave(self) -> None:
        """Go back from wherever."""
        self._keys(*["escape"] * self._rng.randrange(1, 4))

    def click(self) -> None:
        """Click anywhere, once or twice."""
        for _ in range(self._rng.choice((1, 1, 2))):
            x, y = self._rng.randrange(1, 251), self._rng.randrange(1, 61)
            button = self._rng.choice((0, 0, 0, 2))
            self._hands.type(f"\x1b[<{button};{x};{y}M\x1b[<{button};{x};{y}m")

    def scroll(self) -> None:
        """Turn the wheel, or mark a text."""
        x, y = self._rng.randrange(1, 120), self._rng.randrange(1, 36)
        turned = "".join(f"\x1b[<{self._rng.choice((64, 65))};{x};{y}M" for _ in range(5))
        marked = f"\x1b[<0;{x};{y}M\x1b[<32;{x + 9};{y + 2}M\x1b[<0;{x + 9};{y + 2}m"
        self._hands.type(self._rng.choice((turned, marked)))

    def resize(self) -> None:
        """Make the window another size, mostly a usual one."""
        size = self._rng.choice(SIZES)
        self._hands.resize(*(size if self._rng.random() < 0.5 else (120, 36)))

    # --- screens with a purpose ---

    def compare(self) -> None:
        """Compare two ways to answer."""
        self._keys("escape", "escape", "f4")
        self._hands.sync()
        self._keys("enter", "down", "enter")

    def change_setting(self) -> None:
        """Change a setting on its screen."""
        self._keys("escape", "escape", "f11")
        self._hands.sync()
        self._keys(*["down"] * self._rng.randrange(1, 30), "enter")
        self._hands.sync()
        self._hands.type(self._rng.choice(("\x1b[B\r", "0\r", "[x\r", ESCAPE, "\x7f\r")))

    def delete_chat(self) -> None:
        """Delete, rename or archive a chat."""
        self._keys("escape", "escape", "ctrl+l")
        self._hands.sync()
        self._keys("tab", *["down"] * self._rng.randrange(0, 5))
        self._hands.type(self._rng.choice(("d", "a", "r", "p", "m")))
        self._hands.sync()
        self._hands.type(self._rng.choice(("y", "\r", "[/x]\r", ESCAPE)))

    def export(self) -> None:
        """Export a chat, a preset or a plan to some path."""
        self._keys("escape", "escape", self._rng.choice(("ctrl+l", "f3", "f2")))
        self._hands.sync()
        self._hands.type("x")
        self._hands.sync()
        self.fill_in()

    def open_model(self) -> None:
        """Open some model of the list, good or not."""
        self._keys("escape", "escape", "ctrl+o")
        self._hands.sync()
        self._keys(*["down"] * self._rng.randrange(0, 9), "enter")

    # --- what goes wrong ---

    def hurt_engine(self) -> None:
        """Let the engine crash, or stop."""
        self._hands.strike("worker", self._rng.choice(STRIKES))

    def hurt_server(self) -> None:
        """Let a server do something else."""
        rare = ("ten megabytes", "endless text", "endless line")
        misdeed = self._rng.choice(MISDEEDS)
        if misdeed in rare and self._rng.random() < 0.8:
            misdeed = "none"
        self._hands.misbehave(self._rng.randrange(8), misdeed)

    def restart(self) -> None:
        """Start the engine again, in the middle of anything."""
        self._press("ctrl+r")

    def hold(self) -> None:
        """Let another program write the chats."""
        self._hands.hold_database()

    # --- how ---

    def _key(self, name: str) -> str:
        if name.startswith("ctrl+"):
            return chr(ord(name[5]) - 96)
        return KEYS[name]

    def _press(self, name: str) -> None:
        self._hands.type(self._key(name))

    def _keys(self, *names: str) -> None:
        self._hands.type("".join(map(self._key, names)))

    def _paste(self, text: str) -> None:
        self._hands.type(f"\x1b[200~{text}\x1b[201~")
