"""The modules in `tools/documents` that write documents."""

import sys
from importlib import import_module
from types import ModuleType

from documentation.markdown import ROOT


def load_writer(name: str) -> ModuleType:
    if (tools := str(ROOT / "tools")) not in sys.path:
        sys.path.append(tools)
    return import_module(f"documents.{name}")
