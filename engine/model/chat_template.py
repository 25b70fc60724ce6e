"""Chat templates: the Jinja text of a model file, rendered in a sandbox within bounds.

The sandbox has no access to Python's internals. Time and the length of the prompt are bounded; a
template that fills the memory on its way costs the engine's process, which is restarted.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import NoReturn

from jinja2 import TemplateError as JinjaError
from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.clock import in_time
from engine.errors import TemplateError
from engine.requests import Message

TIME_LIMIT_S = 2.0
PROBE = "a7Z"  # a text that no template writes by itself
MAX_REPEAT = 1_000_000
MAX_TEXT = 16 << 20  # characters of a prompt; a longer one fits no context
PLAIN_STOP = ("\nUser:",)
THOUGHT_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Fields of a message in which templates look for the thinking of an earlier reply."""
ADVICE = "use another file of this model, or `kvchat run --raw`"

PLAIN_TEMPLATE = (
    "{% for m in messages %}"
    "{{ 'User' if m.role == 'user' else 'Assistant' if m.role == 'assistant' else 'System' }}: "
    "{{ m.content }}\n\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For models without a template: a plain transcript, stopped at `PLAIN_STOP`."""


class ChatTemplate:
    """Renders messages to the text of a prompt; raises `TemplateError` for invalid Jinja."""

    def __init__(self, text: str | None, *, bos: str = "", eos: str = "") -> None:
        self.is_fallback = text is None
        self.text = text or PLAIN_TEMPLATE
        self._tokens = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = _Environment().from_string(self.text)
        except (JinjaError, RecursionError) as error:
            raise TemplateError(
                f"the model's chat template is not valid Jinja: {error}; {ADVICE}"
            ) from error

    @property
    def stop(self) -> tuple[str, ...]:
        return PLAIN_STOP if self.is_fallback else ()

    def render(self, messages: Sequence[Message], **variables: bool) -> str:
        """The prompt, up to the start of the assistant's next message.

        `variables` are further ones of the template. Raises `TemplateError` if it refuses the
        messages, fails, or is stopped by the sandbox or a limit.
        """
        values: list[dict[str, object]] = []
        for each in messages:
            thoughts = dict.fromkeys(THOUGHT_FIELDS, each.thought) if each.thought else {}
            values.append({"role": each.role, "content": each.content, **thoughts})
        if self._needs_parts:
            values = [{**each, "content": _parts(each["content"])} for each in values]
        return self._rendered(values, **variables)

    @cached_property
    def _needs_parts(self) -> bool:
        """Whether the template needs message contents as lists of parts, as SmolVLM's does."""
        try:
            as_text, as_parts = (
                self._rendered([{"role": "user", "content": content}])
                for content in (PROBE, _parts(PROBE))
            )
        except TemplateError:
            return False  # it requires other messages and fails with a reason at `render`
        return PROBE not in as_text and PROBE in as_parts

    def _rendered(self, values: Sequence[Mapping[str, object]], **variables: bool) -> str:
        try:
            return in_time(lambda: self._text(values, variables), TIME_LIMIT_S)
        except SecurityError as error:
            raise TemplateError(
                f"the model's chat template used something forbidden by the sandbox: {error}; "
                "do not trust this file"
            ) from error
        except TemplateError:
            raise
        except TimeoutError as error:
            raise TemplateError(
                f"the model's chat template ran longer than {TIME_LIMIT_S:g} s: {ADVICE}"
            ) from error
        except Exception as error:  # a template is foreign code: it can raise anything
            raise TemplateError(
                f"the model's chat template failed ({type(error).__name__}: {error}); "
                "the template may not accept a system message, or may require alternating user and "
                "assistant messages"
            ) from error

    def _text(self, values: Sequence[Mapping[str, object]], variables: Mapping[str, bool]) -> str:
        settings = {"add_generation_prompt": True, "tools": None, **self._tokens, **variables}
        pieces, length = [], 0
        for piece in self._template.generate(messages=values, **settings):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_TEXT:
                raise TemplateError(
                    f"the model's chat template produces more than {MAX_TEXT:,} characters: "
                    f"{ADVICE}"
                )
        return "".join(pieces)


def _parts(content: object) -> list[dict[str, object]]:
    return [{"type": "text", "text": content}]


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with bounded repetition and powers."""

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            optimized=False,
            finalize=_unchanged,
        )
        self.filters["tojson"] = lambda value, indent=None: json.dumps(
            value, ensure_ascii=False, indent=indent
        )
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=lambda pattern: datetime.now().astimezone().strftime(pattern),
        )

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
        counts = [side for side in (left, right) if isinstance(side, int)]
        if operator == "**" or (sizes and counts and sizes[0] * counts[0] > MAX_REPEAT):
            raise SecurityError(f"{operator!r} could create a value of unbounded size")
        return super().call_binop(context, operator, left, right)


@pass_context
def _unchanged(context: Context, value: object) -> object:
    """Return the value; with a finaliser, Jinja computes no constants while it compiles."""
    del context
    return value


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(f"the model's chat template refuses these messages: {message}")
