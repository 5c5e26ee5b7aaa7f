"""python .ci/write_links.py REPOSITORY REF: before a release is built, give its package page links that work there.

Project URLs go to pyproject.toml, and the relative links of README.md become absolute ones: to REPOSITORY, an address
like https://host/owner/name, at REF, a tag or commit. The release workflow knows both.
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)")
TABLE = "[project.optional-dependencies]\n"


def main(repository: str, ref: str) -> None:
    page = f"{repository}/blob/{ref}"
    urls = {
        "Source": repository,
        "Documentation": f"{page}/contrib/docs/index.md",
        "Changelog": f"{page}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    pyproject = Path("pyproject.toml")
    text = pyproject.read_text("utf-8")
    assert text.count(TABLE) == 1
    lines = [f'{name} = "{url}"\n' for name, url in urls.items()]
    pyproject.write_text(text.replace(TABLE, "".join(["[project.urls]\n", *lines, "\n", TABLE])), "utf-8")

    def absolute(link: re.Match[str]) -> str:
        is_image, label, path = link.groups()
        return f"{is_image}{label}({f'{repository}/raw/{ref}' if is_image else page}/{path})"

    readme = Path("README.md")
    readme.write_text(LINK.sub(absolute, readme.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python .ci/write_links.py REPOSITORY REF")
    main(*sys.argv[1:])
