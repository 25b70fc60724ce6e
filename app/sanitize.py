"""Model and user text made harmless for a terminal.

Control characters would move the cursor or recolour the screen, bidirectional controls would show
a text in another order than it has. Both are shown as visible signs in their place.
"""

import json
import re

from rich.cells import cell_len

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = "\u200b\u2028\u2029\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
# Between Latin letters a joiner takes width in a terminal and none in our count.
_JOINER = "(?<=[\x00-\u02ff])\u200d|\u200d(?=[\x00-\u02ff])"
_HARMFUL = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_INVISIBLE}\ud800-\udfff]|{_JOINER}")

TAB_WIDTH = 4


def visible(text: str) -> str:
    r"""The text with every harmful character shown as a sign; `\n` stays, tabs become spaces."""
    text = with_signs(text)
    return text.expandtabs(TAB_WIDTH) if "\t" in text else text


def with_signs(text: str) -> str:
    r"""The text with every harmful character shown as a sign; `\n` and tabs stay."""
    return _HARMFUL.sub(_sign, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The text as one line, harmful characters shown as signs."""
    return visible(" ".join(text.split()))


def escaped(text: str) -> str:
    r"""JSON text with every harmful character spelled as JSON spells it, such as `\u009b`."""
    return _HARMFUL.sub(lambda match: json.dumps(match.group())[1:-1], text)


def without_controls(text: str) -> str:
    r"""The text without harmful characters, for the clipboard; `\n` and tabs stay."""
    return _HARMFUL.sub("", text.replace("\r\n", "\n"))


def harmless(text: str) -> str:
    """A part of a line without what moves the cursor or turns the direction; as wide as before."""
    return _HARMFUL.sub(lambda match: "\ufffd" * cell_len(match.group()), text.replace("\n", ""))


def _sign(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"
