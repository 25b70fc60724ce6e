"""tests/contracts/seeds.md names nothing that is not there, and its commands run."""

import ast
import re
import shlex
import sys
from functools import cache
from pathlib import Path

import click
import pytest

from app.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "tests/contracts/seeds.md"
ROW = re.compile(r"^\| (\d+) \|(.*)\|(.*)\|(.*)\|$")
CODE = re.compile(r"`([^`]+)`")
A_FILE = re.compile(r"^[\w./-]+\.(py|md|toml)(::?[\w:.]+)?$")
LOADS_NOTHING = ("plan", "fit", "export", "pairs", "models", "where")
"""Commands that answer without a model's file."""


def test_of(span: str) -> bool:
    return "::" in span


test_of.__test__ = False  # type: ignore[attr-defined]  # its name begins so


def rows() -> list[tuple[int, str, str, str]]:
    found = (ROW.match(line) for line in PAGE.read_text().splitlines())
    return [(int(row[1]), row[2], row[3], row[4]) for row in found if row]


def section(title: str) -> list[str]:
    """The rows of a section's table, without its head."""
    _, _, after = PAGE.read_text().partition(f"## {title}\n")
    body, _, _ = after.partition("\n## ")
    return [line for line in body.splitlines() if line.startswith("| ")][1:]


def left_out() -> list[str]:
    return section("Left out on purpose")


def spans() -> list[str]:
    """All code of the page: places, proofs and reasons."""
    cells = [cell for _, _, where, shown in rows() for cell in (where, shown)]
    return [
        span for cell in (*cells, *left_out(), *section("Not built")) for span in CODE.findall(cell)
    ]


def test_ids() -> list[str]:
    return sorted({span for span in CODE.findall(PAGE.read_text()) if test_of(span)})


test_ids.__test__ = False  # type: ignore[attr-defined]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def defined(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """What a module or a class defines, by name."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found[name] = node
            case ast.AsyncFunctionDef(name=name):
                found[name] = node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node
    return found


def assigned(path: Path, class_name: str) -> set[str]:
    """What instances of a class are given, such as `self.metrics`."""
    node = defined(tree(path).body)[class_name]
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    }


def has(path: Path, names: list[str]) -> bool:
    body, owner = tree(path).body, ""
    for name in names:
        found = defined(body).get(name)
        if found is None:
            return bool(owner) and (name in assigned(path, owner) or inherits(path, owner, name))
        owner, body = name, found.body if isinstance(found, ast.ClassDef) else []
    return True


def inherits(path: Path, class_name: str, name: str) -> bool:
    """Whether a base of a class, of this module or another, has this member."""
    node = defined(tree(path).body)[class_name]
    assert isinstance(node, ast.ClassDef)
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    own = bases & set(defined(tree(path).body))
    if any(has(path, [base, name]) for base in own):
        return True
    imports = (each for each in tree(path).body if isinstance(each, ast.ImportFrom))
    for each in imports:
        module = ROOT / f"{(each.module or '').replace('.', '/')}.py"
        for alias in each.names:
            if alias.name in bases and module.is_file() and has(module, [alias.name, name]):
                return True
    return False


def command_of(words: list[str]) -> click.Command:
    context = click.Context(main.cli)
    found = main.cli.get_command(context, words[1])
    assert found is not None, f"there is no command {words[1]}"
    return found


def options_of(command: click.Command) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


@cache
def every_option() -> frozenset[str]:
    names = (*main.COMMANDS, main.DEFAULT_COMMAND)
    return frozenset().union(*(options_of(command_of(["kvchat", name])) for name in names))


def fault(span: str) -> str | None:
    """What is wrong with a piece of code of the page, None where it is right."""
    if span.startswith("kvchat "):
        words = shlex.split(span)
        known = options_of(command_of(words))
        unknown = [word for word in words[2:] if word.startswith("--") and word not in known]
        return f"{words[1]} has no {unknown}" if unknown else None
    if span.startswith("--"):
        return None if span in every_option() else "no command has this option"
    if A_FILE.match(span):
        name, _, inside = span.partition(":")
        path = ROOT / name
        if not path.is_file():
            return "there is no such file"
        names = [each for each in re.split(r"::|[:.]", inside) if each]
        return None if not names or has(path, names) else "the file does not have it"
    return None


def test_there_are_rows_for_all_that_the_systems_have() -> None:
    numbers = [number for number, *_ in rows()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 62
    assert len(left_out()) > 5


@pytest.mark.parametrize("span", sorted(set(spans())))
def test_what_the_page_names_is_there(span: str) -> None:
    assert fault(span) is None


def test_each_row_has_its_place_and_its_proof() -> None:
    for number, feature, where, shown in rows():
        assert feature.strip(), number
        assert where.strip(), number
        proofs = [span for span in CODE.findall(shown) if test_of(span) or "kvchat " in span]
        assert proofs, f"nothing shows row {number}"


def test_what_is_left_out_has_its_reason() -> None:
    for line in left_out():
        _, whose, what, why, _ = re.split(r"(?<!\\)\|", line)
        assert whose.strip()
        assert what.strip()
        assert len(why.split()) > 5, line


@pytest.mark.parametrize(
    "wrong",
    [
        "engine/none.py", "engine/metrics.py:NONE", "engine/metrics.py:Metrics.none",
        "tests/test_seeds_page.py::test_none", "kvchat run --none", "--none",
        "tests/engine/backends/test_fake.py::TestFakeBackend::test_none",
    ],
)  # fmt: skip
def test_a_name_that_is_not_there_is_found(wrong: str) -> None:
    assert fault(wrong) is not None


def runnable() -> list[str]:
    commands = sorted({span for span in spans() if span.startswith("kvchat ")})
    return [each for each in commands if shlex.split(each)[1] in LOADS_NOTHING and " " in each[7:]]


@pytest.mark.parametrize("command", runnable())
def test_a_command_of_the_page_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out.strip()


if __name__ == "__main__":
    sys.stdout.write(" ".join(test_ids()))
