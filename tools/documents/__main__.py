"""`python tools/documents`: writes the parts of documents that are made from tables of the program and of other
documents."""

import argparse
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TOOLS), str(TOOLS.with_name("tests"))]

from documents.table import DOCUMENTS, written  # noqa: E402

parser = argparse.ArgumentParser(prog="python tools/documents", description=__doc__)
parser.add_argument("--check", action="store_true", help="write nothing: name documents that would change")
parser.add_argument("--screens", action="store_true", help="write the pictures of gnsqadmin instead, in minutes")
arguments = parser.parse_args()
changed: dict[Path, bytes] = {}
if arguments.screens:
    from documents import write_screens, write_web_screens  # here, because only these need Chromium

    changed = write_screens.pictures() | write_web_screens.pictures()
else:
    texts = {document: written(document).encode() for document in DOCUMENTS}
    changed = {document: text for document, text in texts.items() if text != document.read_bytes()}
if arguments.check:
    sys.exit("\n".join(map(str, changed)) or 0)
for document, content in changed.items():
    document.write_bytes(content)
