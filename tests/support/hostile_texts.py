"""Damages texts in the ways that hurt readers: odd numbers, endless runs, nesting, controls."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

MAX_BYTES = 300_000
"""Of one input: a little more than the largest settings file that is read."""
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
WORD = re.compile(rb"[A-Za-z_][\w.-]{2,}")
STRING = re.compile(rb'"[^"\n]*"')
NUMBERS = (
    b"0", b"-1", b"1e308", b"-1e308", b"1e400", b"nan", b"inf", b"-inf", b"1e-320", b"0.5",
    b"2147483647", b"2147483648", b"9223372036854775807", b"9223372036854775808",
    b"18446744073709551616", b"9" * 400, b"9" * 5000, b"0x" + b"f" * 5000, "²".encode(),
    "٣".encode(), b"1_000", b"true", b"null", b'"x"', b"[]", b"{}", b"99999999999", b"10000000",
)  # fmt: skip
TOKENS = (
    b"\x1b]0;PWN\x07", b"\x9b31m", "\u009b31m".encode(), "\u202e".encode(), b"\0", b"\r", b"\x07",
    "\u2028".encode(), "\ufeff".encode(), b"\xff\xfe", b"\xed\xa0\x80", rb"\ud800", rb"\u001b",
    b'"', b"'", b"`", b'"""', b"'''", b"\\", b"\\\n", b"$", b"$$", b"${", b"${A}", b"$A$A", b"%s%n",
    b"[", b"]", b"{", b"}", b"(", b")", b"<<: *a", b"&a ", b"*a", b"!!python/object:os.system x",
    b"#", b"=", b":", b",", b";", b"|", b"../../etc/passwd", b"/dev/zero", b"-", b"--", b"\n",
    b"\t", b" " * 1000, b"(.*)*(.*)*X", b"a" * 70,
)  # fmt: skip
Damage = Callable[[bytes, bytes, random.Random], bytes]


def damaged_texts(seeds: Sequence[bytes], n: int, random_seed: int) -> Iterator[bytes]:
    """Damaged texts, the same ones for the same seed; first what has hurt a reader before."""
    yield from BOMBS[:n]
    rng = random.Random(random_seed)
    for _ in range(n - len(BOMBS)):
        text = rng.choice(seeds)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            text = rng.choice(DAMAGES)(text, rng.choice(seeds), rng)
        if rng.random() < 0.002:
            text = rng.choice(GROWTHS)(text, rng.choice(seeds), rng)
        yield text[:MAX_BYTES]


def _put(text: bytes, at: int, what: bytes) -> bytes:
    return text[:at] + what + text[at:]


def _bits(text: bytes, _: bytes, rng: random.Random) -> bytes:
    data = bytearray(text or b" ")
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _cut(text: bytes, _: bytes, rng: random.Random) -> bytes:
    return text[: rng.randrange(len(text) + 1)]


def _gone(text: bytes, _: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.choice((1, 1, 5, 50)) :]


def _twice(text: bytes, _: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text) + 1)
    return _put(text, at, text[at : at + rng.choice((1, 10, 100))])


def _spliced(text: bytes, other: bytes, rng: random.Random) -> bytes:
    mine, theirs = rng.randrange(len(text) + 1), rng.randrange(len(other) + 1)
    return text[:mine] + other[theirs : theirs + rng.choice((5, 50, 500))] + text[mine:]


def _token(text: bytes, _: bytes, rng: random.Random) -> bytes:
    return _put(text, rng.randrange(len(text) + 1), rng.choice(TOKENS))


def _replaced(
    pattern: re.Pattern[bytes], choices: Sequence[bytes], text: bytes, _: bytes, rng: random.Random
) -> bytes:
    found = list(pattern.finditer(text))
    if not found:
        return text
    match = rng.choice(found)
    return text[: match.start()] + rng.choice(choices) + text[match.end() :]


def _swapped(text: bytes, other: bytes, rng: random.Random) -> bytes:
    """A word where another stood: a value of one key under another."""
    return _replaced(WORD, WORD.findall(other) or [b"x"], text, other, rng)


def _run(text: bytes, _: bytes, rng: random.Random) -> bytes:
    """One character very often."""
    at = rng.randrange(len(text) + 1)
    one = text[at : at + 1] or b" "
    return _put(
        text, at, rng.choice((one, b" ", b"[", b"a.", b"{", b"\n")) * rng.choice((3000, 99_999))
    )


def _lines(text: bytes, _: bytes, rng: random.Random) -> bytes:
    """One line very often, each a little different."""
    line = rng.choice(text.split(b"\n") or [b"x"])[:200]
    count = rng.choice((300, MAX_BYTES // (len(line) + 8)))
    return text + b"".join(b"\n%s%d" % (line, n) for n in range(count))


DAMAGES: tuple[Damage, ...] = (
    _bits, _cut, _gone, _twice, _spliced, _token, _token, _token, _swapped,
    partial(_replaced, NUMBER, NUMBERS), partial(_replaced, NUMBER, NUMBERS),
    partial(_replaced, STRING, NUMBERS), partial(_replaced, WORD, TOKENS),
)  # fmt: skip
GROWTHS: tuple[Damage, ...] = (_run, _lines)

BOMBS = (
    b"",
    b"\0",
    b"\xff\xfe",
    b" " * MAX_BYTES,
    b"\n" * MAX_BYTES,
    b"[" * 200_000,
    b"{" * 200_000,
    b'{"a":' * 50_000,
    b'{"load":{"fields":' + b"[" * 200_000,
    b"a: " + b"[" * 200_000,
    b"models:\n" + b"\n".join(b" " * n + b"a:" for n in range(900)),
    b"a" + b".a" * 100_000 + b" = 1",
    b"[" + b"a." * 100_000 + b"a]",
    b"a = " + b"[" * 10_000,
    b"n_ctx = " + b"9" * 5000,
    b"vram_gib = 1e300",
    b"tensor_split = [inf, 1]",
    b"name = 'x'\nn_cpu_moe = 10000000",
    b"name = 'x'\n[[tensor_overrides]]\npattern = '(.*)*(.*)*(.*)*X'",
    b'LLAMA_ARG_CTX_SIZE="4096',
    b"A0=aaaaaaaaaa\n" + b"".join(b'A%d="$A%d$A%d"\n' % (n + 1, n, n) for n in range(32)),
    b"A=a\n" + b"$A" * 140_000,
    b"A=1;c -x;" * 30_000,
    b"".join(b"A%d=1;c;" % n for n in range(30_000)),
    b"llama-server " + b"a " * 140_000,
    b"llama-server " + b"-a " * 90_000,
    b"llama-server -md x --draft-max \xc2\xb2",
    b"[" + b" " * 100_000,
    b"[a]\nb=" + b" " * 100_000 + b"x;",
    b"[a]\n" + b"b=1\n" * 60_000,
    b"[Service]\nExecStart=" + b'"\\" ' * 60_000,
    b"[Service]\n" + b"ExecStart\n" * 25_000,
    b"[Service]\n" + b"Environment=A=1\n" * 15_000,
    b"FROM x\n" + b'a """\nb"""c\n' * 20_000,
    b"FROM x\nPARAMETER num_ctx inf\n",
    b"FROM x\nPARAMETER num_ctx nan\n",
    b"#\n" * 100_000,
    b"models:\n  a:\n    cmd: ${a}"
    + b"${b}" * 1000
    + b"\nmacros:\n  a: "
    + b"${b}" * 1000
    + b"\n  b: "
    + b"${a}" * 1000,
    b"models:\n  a:\n    cmd: x\nmacros:\n" + b"".join(b"  a%d: b\n" % n for n in range(9000)),
    b"services: &a {a: &b [*a, *a]}",
    b"services:\n  a: &a [x,x,x]\n"
    + b"".join(b"  b%d: &b%d [*a,*a,*a]\n" % (n, n) for n in range(900)),
    b"f: " + b"a" * 100_000,
    b"a" * 300_000,
    b"f: a: " * 50_000,
    b"| - a (" * 40_000,
    b"load_tensors: CUDA0 model buffer size = " + b"9" * 400 + b" MiB\n",
    b"".join(b"load: D%d model buffer size = 1.00 MiB\n" % n for n in range(7000)),
    b"".join(b"|   - D%d (x) | 1 = 1 + (1 = 1 + 1 + 1) + 1 |\n" % n for n in range(6000)),
    b"".join(b"k%d = 1\n" % n for n in range(20_000)),
    b"".join(b"[t%d]\n" % n for n in range(20_000)),
    b"[variables]\n" + b"".join(b"k%d = '#fff'\n" % n for n in range(12_000)),
    b'a = "' + b"\\u0041" * 40_000 + b'"',
    b'{"model_param":"\\ud800"}',
    b'{"model_param":' + b"9" * 5000 + b"}",
    b'{"gpulayers":1e999,"usecuda":["\xc2\xb2"]}',
    b'{"load":{"fields":[{"key":"llm.load.llama.acceleration.offloadRatio","value":1e308}]}}',
    b'{"gpulayers":1,"gendefaults":"' + b"[" * 100_000 + b'"}',
    b"- " * 50_000,
    b"? " * 50_000,
    b"&a " * 50_000,
    b"services: " + b'"\\x41' * 1000,
    b'services: "' + b"\\x41" * 50_000 + b'"',
    b"services: " + b"x " * 100_000,
)
"""Whole texts: each stopped a reader, or is the worst for one."""
