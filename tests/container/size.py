"""How large the libraries are that gnsqd needs, as they are installed: `PYTHONPATH=tests python -m container.size`.

Together with gnsqd itself, which is in the table, this is what the image has above its base.
"""

import re
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement


def on_disk(path: Path) -> int:
    """Bytes of its blocks; a link has none of its own."""
    return 0 if path.is_symlink() or not path.is_file() else path.stat().st_blocks * 512


def of_requirements(name: str, found: dict[str, int] | None = None) -> dict[str, int]:
    """Bytes of every distribution that this one requires here, directly or not, with what pip compiled of it."""
    found = {} if found is None else found
    for requirement in map(Requirement, distribution(name).requires or []):
        required = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if required not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found[required] = of_distribution(required)
            of_requirements(required, found)
    return found


def of_distribution(name: str) -> int:
    """Bytes of its files."""
    return sum(on_disk(Path(str(file.locate()))) for file in distribution(name).files or [])


def main() -> None:
    sizes = {"gnsqd": of_distribution("gnsqd"), **of_requirements("gnsqd")}
    lines = [f"{size / 1e6:6.1f} MB  {name}" for name, size in sorted(sizes.items(), key=lambda item: item[1])]
    sys.stdout.write("\n".join([*lines, f"{sum(sizes.values()) / 1e6:6.1f} MB\n"]))


if __name__ == "__main__":
    main()
