"""The versions: that of the nsqd release which gnsqd replaces, and gnsqd's own version and build.

Clients and tools read `NSQD_VERSION` everywhere; our own version only appears inside the parentheses of
`version_string`, in the start log line and in the build metric. `VERSION` is the only place that has it: the
packaging reads it from here, so it stays a plain literal.
"""

import os
import sys
from importlib.machinery import ExtensionFileLoader, PathFinder

VERSION = "1.0.0"
NSQD_VERSION = "1.3.0"


def version_string(program: str = "nsqd") -> str:
    """Returns the line that `--version` prints, in the shape of the real daemon's `nsqd v1.3.0 (built w/go1.19.8)`."""
    return f"{program} v{NSQD_VERSION} (built w/gnsqd-{VERSION}-py{sys.version.split()[0]}-{lane()})"


def lane() -> str:
    """Returns `compiled` if the hot modules are extension modules, else `plain`; does not import them."""
    spec = PathFinder.find_spec("channel", [os.path.join(os.path.dirname(os.path.dirname(__file__)), "broker")])
    return "compiled" if spec is not None and isinstance(spec.loader, ExtensionFileLoader) else "plain"
