"""`python tools/documents [NAME...]`: writes the parts of documents that are made from tables of the program and of
other documents: all of them, or those of some modules of this directory. `make options` runs it; tests compare."""

import sys
from importlib import import_module
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOOLS), str(TOOLS.with_name("tests"))]

NAMES = ("options", "gnsqadmin", "spark", "reference", "performance")  # `screens` takes half a minute

for name in sys.argv[1:] or NAMES:
    for path, text in import_module(f"documents.write_{name}").pages().items():
        path.write_text(text, "utf-8")
