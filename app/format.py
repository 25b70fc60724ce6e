"""Numbers as screens and commands write them."""

from datetime import datetime

from engine.memory.units import GIB, KIB, MIB, format_bytes

NO_VALUE = "\N{EN DASH}"
"""Text in place of a missing number."""

ROUGH = "~"
"""Shown before a figure that the noise of the machine blurs."""
NOISY = 0.1
"""Spread of plain steps from which speeds are shown as rough."""
ROUGH_GAIN = 0.25
"""Share of a gain that is noise, from which it is shown as rough."""
MANY = 20
"""Tokens from which a share of them is shown in per cents."""

nbytes = format_bytes
"""A size as every command and screen writes it."""

_KIB = 1024


def tokens(n: int) -> str:
    """A number of tokens in at most five characters: `812`, `1.2k`, `131k`, `10.5M`."""
    return _in_thousands(n, 1000) if n >= 1000 else str(n)


def context_size(n: int) -> str:
    """A context size in at most five characters; multiples of 1,024 in k: `8k` is 8,192."""
    if n < _KIB or n % _KIB:
        return tokens(n)
    if n % _KIB**2 == 0:
        return f"{n // _KIB**2}M"
    return f"{n // _KIB}k" if n < 10_000 * _KIB else _in_thousands(n, _KIB)


def part_of_context(n_used: int, n_ctx: int) -> str:
    """Tokens and the context that they take, both counted in its thousands: `7.9k/8k`."""
    step = 1000 if n_ctx % _KIB else _KIB
    used = _in_thousands(n_used, step) if n_used >= step else str(n_used)
    return f"{used}/{context_size(n_ctx)}"


def _in_thousands(n: int, step: int) -> str:
    value, unit = n / step, "k"
    if value >= 9999.5:
        value, unit = value / step, "M"
    return f"{value:.1f}{unit}" if value < 99.95 else f"{value:.0f}{unit}"


def nbytes_of(part: int, whole: int) -> str:
    """A size and what it is a part of: `27 of 180 MiB`, `27 MiB of 1 GiB`."""
    number, unit = nbytes(part).split(" ")
    of = nbytes(whole)
    return f"{number} of {of}" if of.endswith(f" {unit}") else f"{number} {unit} of {of}"


def exact_bytes(n: int) -> str:
    """A size so that reading it gives the very number again, such as `4GiB`."""
    for factor, unit in ((1024 * GIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if n and n % factor == 0:
            return f"{n // factor}{unit}"
    return f"{n}B" if n else "0"


def short_nbytes(n: int) -> str:
    """A size in at most five cells: `27M`, `1.53G`."""
    number, unit = nbytes(n).split(" ")
    return f"{number}{unit[0]}"


def counted(n: int | None, noun: str) -> str:
    """A count with its noun: `1 hit`, `2 misses`; a dash for None."""
    return f"{count(n)} {plural(0 if n is None else n, noun)}"


def listed(*counted: tuple[int, str]) -> str:
    """Counts with their names, without those that are 0: `900 hot, 204 cold`."""
    return ", ".join(f"{count(n)} {name}" for n, name in counted if n)


def plural(n: float, noun: str) -> str:
    """The noun after a count: `hit` after 1, `misses` or `replies` after 2."""
    if n == 1:
        return noun
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def count(n: int | None) -> str:
    """A count with thousands separated; a dash for None."""
    return NO_VALUE if n is None else f"{n:,}"


def percent(fraction: float | None) -> str:
    """A share in whole percent; a dash for None."""
    return NO_VALUE if fraction is None else f"{100 * fraction:.0f}%"


def plus_minus(spread: float) -> str:
    """Spread of values around their median, in per cent; above 100 % without digits."""
    return f"\N{PLUS-MINUS SIGN}{percent(spread)}" if spread <= 1 else ">\N{PLUS-MINUS SIGN}100%"


def seconds(value: float | None) -> str:
    """A time with two or three digits: `0.08 s`, `6.1 s`, `2 min 05 s`."""
    if value is None:
        return NO_VALUE
    magnitude = abs(value)
    if magnitude < 1:
        return f"{value:.2f} s"
    if magnitude < 60:
        return f"{value:.1f} s"
    sign = "-" if value < 0 else ""
    return f"{sign}{int(magnitude) // 60} min {int(magnitude) % 60:02d} s"


def short_seconds(value: float) -> str:
    """A time in at most seven cells: `0.4 ms`, `12 ms`, `1.2 s`, `2.1 min`, `3.0 h`."""
    if value >= 60:
        return f"{value / 60:.1f} min" if value < 3600 else f"{value / 3600:.1f} h"
    if value >= 1:
        return seconds(value)
    milliseconds = 1000 * value
    return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"


def moment(seconds: float) -> datetime | None:
    """A time of the epoch as a local time; None if no calendar has it."""
    try:
        return datetime.fromtimestamp(seconds).astimezone()
    except (OverflowError, OSError, ValueError, TypeError):
        return None


def local_time(seconds: float) -> str:
    """A time of the epoch as date, hour and minute here."""
    when = moment(seconds)
    return NO_VALUE if when is None else when.strftime("%Y-%m-%d %H:%M")


def ago(elapsed_s: float) -> str:
    """How long ago something was, in at most six cells: `now`, `12 s`, `3 min`, `5 h`, `2 d`."""
    if elapsed_s < 5:
        return "now"
    for limit, divisor, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if elapsed_s < limit:
            return f"{elapsed_s / divisor:.0f} {unit}"
    return f"{elapsed_s / 86400:.0f} d"


def gain(value: float | None) -> str:
    """A time won or lost with its sign, in at most nine characters: `+1.4 s`, `-2.2 min`."""
    if value is None:
        return NO_VALUE
    if abs(value) < 60:
        return f"{value:+.2f} s" if abs(value) < 1 else f"{value:+.1f} s"
    minutes = value / 60
    return f"{minutes:+.1f} min" if abs(minutes) < 60 else f"{minutes / 60:+.1f} h"


def measured_gain(saved_s: float | None, error_s: float | None) -> str:
    """Time that drafts saved: a dash if it may be noise, `~` if noise is a large part of it."""
    mark = gain_mark(saved_s, error_s)
    return NO_VALUE if mark is None else mark + gain(saved_s)


def measured_speedup(
    speedup: float | None, saved_s: float | None, error_s: float | None
) -> str | None:
    """A speed-up such as `1.6x` or `~1.6x`; None where the time that it rests on may be noise."""
    mark = gain_mark(saved_s, error_s)
    return None if mark is None or speedup is None else mark + factor(speedup)


def acceptance(n_accepted: int, n_verified: int) -> str:
    """A share of validated tokens: `3/4` while they are few, `67%` from `MANY` on."""
    if n_verified < MANY:
        return f"{n_accepted}/{n_verified}" if n_verified else NO_VALUE
    return percent(n_accepted / n_verified)


def gain_mark(saved_s: float | None, error_s: float | None) -> str | None:
    """Sign before a gain with the error `error_s`; None if the error hides the gain."""
    if saved_s is None or error_s is None or abs(saved_s) <= error_s:
        return None
    return ROUGH if error_s > ROUGH_GAIN * abs(saved_s) else ""


def speed(tps: float | None, spread: float | None) -> str:
    """A decode speed: `74 tok/s`, `~74 tok/s` where plain steps differ by `NOISY` and more."""
    return f"{ROUGH if is_noisy(spread) else ''}{rate(tps)} tok/s"


def is_noisy(spread: float | None) -> bool:
    """Whether plain steps differ too much for a precise speed."""
    return spread is not None and spread >= NOISY


def rate(value: float | None) -> str:
    """A decode speed in tokens per second."""
    if value is None:
        return NO_VALUE
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def factor(value: float | None) -> str:
    """A speed-up such as `1.6x`."""
    return NO_VALUE if value is None else f"{value:.2f}x" if value < 1.05 else f"{value:.1f}x"


def share(part: float, whole: float) -> float | None:
    """A part of a whole as a fraction, None while the whole is zero."""
    return part / whole if whole else None
