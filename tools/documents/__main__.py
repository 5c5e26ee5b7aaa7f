"""`python tools/documents [NAME...]`: writes the parts of documents that are made from tables of the program and of
other documents: all of them, or those of some modules of this directory. `make options` runs it; tests compare."""

import sys
from importlib import import_module
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

NAMES = ("options", "gnsqadmin", "spark", "reference", "performance")

for name in sys.argv[1:] or NAMES:
    for path, text in import_module(f"documents.write_{name}").pages().items():
        path.write_text(text, "utf-8")
