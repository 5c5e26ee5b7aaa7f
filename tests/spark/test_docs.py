"""The page about Spark is what the tables of options give."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from documentation.writers import load_writer
from pyspark_nsq.options import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "contrib" / "docs" / "spark.md"


@pytest.fixture
def writer() -> ModuleType:
    """The script that writes them."""
    return load_writer("write_spark")


def test_page_has_the_tables_of_options(writer: ModuleType) -> None:
    text = PAGE.read_text("utf-8")
    assert text == writer.page(text), "run `make options`"
    assert {option.name for option in OPTIONS} <= set(re.findall(r"^\| `(\S+)` \| ", text, re.MULTILINE))


def test_options_of_the_examples_exist() -> None:
    examples = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
    named = set(re.findall(r'\.option\("([^"]+)"', examples))
    assert named <= {option.name for option in OPTIONS} | {"checkpointLocation"}
    compile(examples, str(PAGE), "exec")
