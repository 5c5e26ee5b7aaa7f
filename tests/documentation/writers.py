"""The programs in `.ci` that write documents, as modules."""

import importlib.util
from types import ModuleType

from documentation.markdown import ROOT


def load_writer(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
