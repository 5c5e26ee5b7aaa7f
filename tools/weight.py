"""Prints how many lines and files each area of weight.toml has; ends with exit code 1 if one has more than it may."""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    is_heavy = False
    print(f"{'area':14}{'files':>7}{'lines':>8}{'at most':>9}")
    for name, area in tomllib.loads((ROOT / "tools/weight.toml").read_text("utf-8")).items():
        files = {path for pattern in area["files"] for path in ROOT.glob(pattern) if path.is_file()}
        lines = sum(path.read_bytes().count(b"\n") for path in files)
        is_above = lines > area["most_lines"] or len(files) > area.get("most_files", len(files))
        is_heavy |= is_above
        mark = "  above the budget of tools/weight.toml" if is_above else ""
        print(f"{name:14}{len(files):7}{lines:8}{area['most_lines']:9}{mark}")
    sys.exit(is_heavy)


if __name__ == "__main__":
    main()
