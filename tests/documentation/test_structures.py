"""structures.md has every field of the classes that it shows, and every kind of record of a journal."""

import ast
import re

from documentation.markdown import DOCS, ROOT

TEXT = (DOCS / "structures.md").read_text("utf-8")
SECTIONS = re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
SOURCES = {path: path.read_text("utf-8") for path in sorted((ROOT / "gnsqd").rglob("*.py"))}
CLASSES = {
    node.name: node for text in SOURCES.values() for node in ast.parse(text).body if isinstance(node, ast.ClassDef)
}


def fields(name: str) -> set[str]:
    """Returns what the methods of a class set on `self`, and what it declares, without the fields of its bases."""
    own, inherited = set(), set()
    for node in ast.walk(CLASSES[name]):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=attribute, ctx=ast.Store()):
                own.add(attribute)
    for item in CLASSES[name].body:
        match item:
            case ast.AnnAssign(target=ast.Name(id=declared)):
                own.add(declared)
    for base in CLASSES[name].bases:
        inherited |= fields(ast.unparse(base))
    return own - inherited


def test_fields_are_those_of_the_classes() -> None:
    shown = {}
    for name, text in SECTIONS:
        first_cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        shown[name] = sorted(re.findall(r"`(\w+)`", " ".join(first_cells)))
    assert len(shown) > 10
    assert shown == {name: sorted(fields(name)) for name in shown}


def test_kinds_of_records_are_those_of_the_journal() -> None:
    (source,) = [text for text in SOURCES.values() if "\nclass Encoder" in text]
    names = re.findall(r"^((?:[A-Z]+, )+[A-Z]+) = range\(\d+, \d+\)$", source, re.MULTILINE)
    kinds = [*enumerate(", ".join(names).split(", "), start=1)]
    shown = re.findall(r"^\| (\d+) `([A-Z]+)` \|", TEXT, re.MULTILINE)
    assert kinds[4] == (5, "FINISHED")
    assert [(int(kind), name) for kind, name in shown] == kinds
