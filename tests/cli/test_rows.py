"""Rows: one declaration for JSON, tables, CSV and the description of a document."""

from dataclasses import dataclass

from nsqadmin_cli.http_client import Address
from nsqadmin_cli.table import Cell, Form, Tone, as_json, column, described, json_only, table_of


@dataclass
class Row:
    name: Cell = column("queue", key="queue")
    error: str = json_only("null, or why", null=True, default="")
    depth: int | None = column("depth", form=Form.COUNT)
    state: str = column("state", json=False, default="fine")
    nodes: set[str] = json_only(default_factory=set)


ROWS = [Row(Cell("a", Tone.BAD), "gone", nodes={"y", "x"}), Row(Cell("b"), depth=3), Row(Cell("c"), depth=4)]


def test_json_has_the_fields_that_are_for_it() -> None:
    assert as_json(ROWS[0]) == {"name": "a", "error": "gone", "depth": None, "nodes": ["x", "y"]}
    assert as_json({"rows": ROWS[1:2]}) == {"rows": [{"name": "b", "error": None, "depth": 3, "nodes": []}]}


def test_a_value_with_a_text_of_its_own_is_that_text_in_json() -> None:
    assert as_json([Address("a", 1), ("b", True, 2.5)]) == ["a:1", ["b", True, 2.5]]


def test_tables_have_the_columns_and_the_sums_of_several_rows() -> None:
    table = table_of(Row, ROWS, total="3 queues")
    assert [(column.key, column.heading) for column in table.columns] == [
        ("queue", "queue"),
        ("depth", "depth"),
        ("state", "state"),
    ]
    assert table.rows[1] == [Cell("b"), 3, "fine"]
    assert table.total == ["3 queues", 7, None]
    assert table_of(Row, ROWS[:1], total="1 queue").total is None


def test_columns_can_be_left_out() -> None:
    assert table_of(Row, ROWS[1:2], without=("name", "state")).rows == [[3]]


def test_a_document_is_described_by_its_keys() -> None:
    assert described("rows", "list", Row) == "rows     list: name, error (null, or why), depth, nodes\n"
