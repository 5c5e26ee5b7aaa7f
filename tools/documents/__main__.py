"""`python tools/documents [NAME...]`: writes the parts of documents that are made from tables of the program and of
other documents: all of them, or those of some modules of this directory. `make options` runs it; tests compare."""

import sys
from importlib import import_module
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOOLS), str(TOOLS.with_name("tests"))]

# `screens` and `web_screens` take two minutes
NAMES = ("options", "gnsqadmin", "spark", "reference", "performance")

for name in sys.argv[1:] or NAMES:
    for path, content in import_module(f"documents.write_{name}").pages().items():
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
