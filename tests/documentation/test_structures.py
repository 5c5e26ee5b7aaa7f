"""structures.md has every field of the classes that it shows, and every kind of record of a journal."""

import ast
import re
from pathlib import Path

from documentation.markdown import DOCS, ROOT

TEXT = (DOCS / "structures.md").read_text("utf-8")
SHOWN = re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
CLASSES = {
    node.name: (path, node)
    for path in sorted((ROOT / "gnsqd").rglob("*.py"))
    for node in ast.parse(path.read_text("utf-8")).body
    if isinstance(node, ast.ClassDef)
}


def fields(name: str) -> set[str]:
    """Returns what the methods of a class set on `self`, and what it declares, without the fields of its bases."""
    _, node = CLASSES[name]
    found = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)}
    for part in ast.walk(node):
        match part:
            case ast.Attribute(value=ast.Name(id="self"), attr=attribute, ctx=ast.Store()):
                found.add(attribute)
    return found.difference(*(fields(base.id) for base in node.bases if isinstance(base, ast.Name)))


def test_fields_are_those_of_the_classes() -> None:
    rows = {name: re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name, text in SHOWN}
    shown = {name: re.findall(r"`(\w+)`", " ".join(first_cells)) for name, first_cells in rows.items()}
    assert len(shown) > 10
    assert {name: sorted(names) for name, names in shown.items()} == {name: sorted(fields(name)) for name in shown}


def test_kinds_of_records_are_those_of_the_journal() -> None:
    path: Path = CLASSES["Encoder"][0]
    lines = re.findall(r"^((?:[A-Z]+, )+[A-Z]+) = range\((\d+), \d+\)$", path.read_text("utf-8"), re.MULTILINE)
    kinds = [(int(first) + place, name) for names, first in lines for place, name in enumerate(names.split(", "))]
    assert [(int(kind), name) for kind, name in re.findall(r"^\| (\d+) `([A-Z]+)` \|", TEXT, re.MULTILINE)] == kinds != []
