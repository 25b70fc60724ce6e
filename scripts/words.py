"""Count private words in identifiers, docstrings, strings, comments and pages, per package.

    python scripts/words.py            exit code 1 if a package has more than `words.json` allows,
                                       or a page or a text of app or engine has one
    python scripts/words.py --write    lower the numbers of `words.json` to the present counts
    python scripts/words.py --list app/cli

The field has a word for each of them: "told" is reported, "kept" is cached or saved, "behind 16k
tokens" is at depth 16k, "room" is free space or capacity, a "law" is a distribution.
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = Path(__file__).with_suffix(".json")
WORDS = re.compile(
    r"""\b(?:
    tell|tells|telling|told | say|says|saying|said | spell|spells|spelled | kept
    | stretch|stretches | behind | law|laws | room|rooms | parting | parted | knob|knobs
    | foretold | judge|judges|judged | quick|quicker|quickest | wish|wishes | anew | whoever
    | main\ memory | micro[- ]batch(?:es)? | next[- ]token\ heads? | what[- ]ifs? | takes?\ in
    | stands?\ by
    )\b""",
    re.VERBOSE,
)
CONSTANTS = re.compile(r"\b(?:MOST|LEAST)_[A-Z0-9_]+\b")
"""Limits, whose names should begin with MAX_ or MIN_."""
CODE = (tokenize.NAME, tokenize.STRING, tokenize.COMMENT)


def main() -> int:
    """Compare the counts of every package with the allowed ones; 1 if they are higher."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--list", metavar="PACKAGE", dest="listed")
    options = parser.parse_args()
    if options.listed:
        for path, word in found(ROOT):
            if package_of(path) == options.listed:
                print(f"{path}: {word}")
        return 0
    for path, word in (visible := [*visible_words(ROOT)]):
        print(f"{path}: users read the private word {word!r}")
    counts = Counter(package_of(path) for path, _ in found(ROOT))
    allowed: dict[str, int] = json.loads(ALLOWED.read_text())
    more = {name: n for name, n in sorted(counts.items()) if n > allowed.get(name, 0)}
    for name, n in more.items():
        print(f"{name} has {n} private words, {allowed.get(name, 0)} are allowed: "
              f"python scripts/words.py --list {name}")  # fmt: skip
    if options.write and not more:
        ALLOWED.write_text(json.dumps(dict(sorted(counts.items())), indent=2) + "\n")
    print(f"{counts.total()} private words in {len(counts)} packages")
    return int(bool(more or visible))


def found(root: Path) -> Iterator[tuple[Path, str]]:
    """Every private word and the file that has it, relative to the root."""
    folders = ("app", "engine", "benchmarks", "scripts", "tests")
    code = (path for folder in folders for path in sorted((root / folder).rglob("*.py")))
    for path in code:
        if path != Path(__file__):
            yield from ((path.relative_to(root), word) for word in words_of_code(path))
    for path in pages(root):
        yield from ((path.relative_to(root), word) for word in words_of(path.read_text()))


def visible_words(root: Path) -> Iterator[tuple[Path, str]]:
    """Every private word that users read: on a page or in a string of app or engine."""
    for path in pages(root):
        prose = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.DOTALL)
        yield from ((path.relative_to(root), word) for word in WORDS.findall(prose.lower()))
    for path in sorted([*(root / "app").rglob("*.py"), *(root / "engine").rglob("*.py")]):
        for text in texts_of(path):
            plain = re.sub(r"{[^{}]*}", "", text).lower()
            yield from ((path.relative_to(root), word) for word in WORDS.findall(plain))


def texts_of(path: Path) -> Iterator[str]:
    """The strings of a Python file with several words, without docstrings."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield from [text] if " " in text.strip() else []


def pages(root: Path) -> list[Path]:
    """README, pages, results of benchmarks and presets."""
    patterns = ("*.md", "docs/*.md", "benchmarks/**/*.md", "presets/*.toml")
    return sorted(path for pattern in patterns for path in root.glob(pattern))


def words_of_code(path: Path) -> Iterator[str]:
    """Private words in the names, strings and comments of a Python file."""
    with tokenize.open(path) as file:
        text = file.read()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in CODE or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            yield from words_of(token.string)


def words_of(text: str) -> Iterator[str]:
    """Private words in a text; the parts of an identifier are words."""
    yield from CONSTANTS.findall(text)
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text)
    yield from WORDS.findall(parts.lower())


def package_of(path: Path) -> str:
    """The package of a file: app/cli, engine, tests, docs, README.md."""
    if path.suffix == ".md":
        return "docs" if path.parent.name == "docs" else path.name
    n_parts = 2 if path.parts[0] in ("app", "engine") and len(path.parts) > 2 else 1
    return "/".join(path.parts[:n_parts])


if __name__ == "__main__":
    sys.exit(main())
