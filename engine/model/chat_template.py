"""Chat templates: the Jinja text of a model file, rendered where it can do no harm."""

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from types import FrameType
from typing import Any, NoReturn

import psutil
from jinja2 import TemplateError as JinjaError
from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import TemplateError
from engine.requests import Message

TraceFunction = Callable[[FrameType, str, Any], Any]

TIME_LIMIT_S = 2.0
PROBE = "a7Z"
"""A text that no template writes by itself."""
MAX_REPEAT = 1_000_000
MEMORY_BYTES, MEMORY_SHARE = 256 << 20, 4
"""Most memory that the process may take on while a template is rendered: the larger of the first
and this part of the free memory. It holds for other threads too, which load states meanwhile."""
MAX_TEXT = 16 << 20
"""Most characters of a prompt; a longer one fits no context."""
PLAIN_STOP = ("\nUser:",)
THOUGHT_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Fields of a message in which templates look for what an earlier reply thought."""

PLAIN_TEMPLATE = (
    "{% for m in messages %}"
    "{{ 'User' if m.role == 'user' else 'Assistant' if m.role == 'assistant' else 'System' }}: "
    "{{ m.content }}\n\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For models without a template of their own: a plain transcript, stopped at `PLAIN_STOP`."""


class ChatTemplate:
    """Renders messages to the text of a prompt.

    Jinja's immutable sandbox keeps the template away from Python's insides; a timer ends one that
    loops; a limit of the process (on Linux) ends one that fills the memory, whatever it does so by.

    Raises:
        TemplateError: the text is not a template.
    """

    def __init__(self, text: str | None, *, bos: str = "", eos: str = "") -> None:
        self.is_fallback = text is None
        self.text = text or PLAIN_TEMPLATE
        self._tokens = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = _environment().from_string(self.text)
        except (JinjaError, RecursionError) as error:
            raise TemplateError(
                f"the model's chat template is not valid Jinja: {error}; "
                "use another file of this model, or `kvchat run --raw`"
            ) from error

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings that the template needs."""
        return PLAIN_STOP if self.is_fallback else ()

    def render(self, messages: Sequence[Message], **variables: bool) -> str:
        """The prompt, ending where the assistant's next message starts.

        Args:
            messages: What was said.
            variables: What the template lets one choose beside them.

        Raises:
            TemplateError: the template refused the messages, was stopped by the sandbox or the time
                limit, or failed.
        """
        values = [_values(message) for message in messages]
        if self._takes_parts:
            values = [{**each, "content": _parts(each["content"])} for each in values]
        return self._rendered(values, **variables)

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether it reads contents as lists of parts and nothing of a text, as SmolVLM's does."""
        try:
            as_text, as_parts = (
                self._rendered([{"role": "user", "content": content}])
                for content in (PROBE, _parts(PROBE))
            )
        except TemplateError:
            return False  # it wants other messages, and says so where they are rendered
        return PROBE not in as_text and PROBE in as_parts

    def _rendered(self, values: Sequence[Mapping[str, object]], **variables: bool) -> str:
        most = max(MEMORY_BYTES, psutil.virtual_memory().available // MEMORY_SHARE)
        try:
            with _time_limit(TIME_LIMIT_S), _memory_limit(most):
                text = self._template.render(
                    messages=values,
                    add_generation_prompt=True,
                    tools=None,
                    **self._tokens,
                    **variables,
                )
        except SecurityError as error:
            raise TemplateError(
                f"the model's chat template used something forbidden by the sandbox: {error}; "
                "do not trust this file"
            ) from error
        except TemplateError:
            raise
        except MemoryError as error:
            raise _too_large(f"{most >> 20} MiB of memory") from error
        except Exception as error:  # a template is foreign code: it can raise anything
            raise TemplateError(
                f"the model's chat template failed: {type(error).__name__}: {error}; "
                "it may not accept a system message, or require user and assistant in turn"
            ) from error
        if len(text) > MAX_TEXT:
            raise _too_large(f"a prompt of {MAX_TEXT:,} characters")
        return text


def _parts(content: object) -> list[dict[str, object]]:
    return [{"type": "text", "text": content}]


def _values(message: Message) -> dict[str, object]:
    values: dict[str, object] = {"role": message.role, "content": message.content}
    return values | dict.fromkeys(THOUGHT_FIELDS, message.thought) if message.thought else values


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with bounded repetition and powers."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
        counts = [side for side in (left, right) if isinstance(side, int)]
        if operator == "**" or (sizes and counts and sizes[0] * counts[0] > MAX_REPEAT):
            raise SecurityError(f"{operator!r} would make a value of unbounded size")
        return super().call_binop(context, operator, left, right)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
        optimized=False,
        finalize=_as_it_is,
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@pass_context
def _as_it_is(context: Context, value: object) -> object:
    """The value: with a finaliser Jinja computes nothing before the limits hold."""
    del context
    return value


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(f"the model's chat template refuses these messages: {message}")


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `TemplateError` in the block after so many seconds.

    A signal ends it in the main thread. Signals reach no other one: there each line looks at the
    clock, which is slow and happens beside a reply only.
    """
    if threading.current_thread() is not threading.main_thread():
        with _time_limit_by_line(seconds):
            yield
        return
    before: Callable[[int, FrameType | None], object] | int | None
    before = signal.signal(signal.SIGALRM, _too_slow)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _time_limit_by_line(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds

    def look(frame: FrameType, event: str, argument: object) -> TraceFunction:
        del frame, event, argument
        if time.monotonic() > end:
            _too_slow()
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


_LIMITED = threading.Lock()
_limits_before: list[tuple[int, int]] = []
"""One for each template that is rendered now; the first is what holds without any."""


@contextmanager
def _memory_limit(nbytes: int) -> Iterator[None]:
    """Raise `MemoryError` in the block where the process takes on more than so many bytes."""
    with _LIMITED:
        soft, hard = _limits_before[0] if _limits_before else resource.getrlimit(resource.RLIMIT_AS)
        _limits_before.append((soft, hard))
        if (now := _address_space()) is not None:
            most = now + nbytes
            most = most if soft == resource.RLIM_INFINITY else min(most, soft)
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        with _LIMITED:
            before = _limits_before.pop()
            if not _limits_before:
                resource.setrlimit(resource.RLIMIT_AS, before)


def _address_space() -> int | None:
    """Bytes of this process's address space; None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  as quick as can be
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _too_large(what: str) -> TemplateError:
    return TemplateError(
        f"the model's chat template needs more than {what}: use another file of this model, or "
        "`kvchat run --raw`"
    )


def _too_slow(_number: int = 0, _frame: FrameType | None = None) -> NoReturn:
    raise TemplateError(
        f"the model's chat template ran longer than {TIME_LIMIT_S:g} s: "
        "use another file of this model, or `kvchat run --raw`"
    )
