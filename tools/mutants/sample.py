"""Mutants: places where one operator, condition, number or statement of the product can be another one."""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS = (ast.Eq, ast.NotEq), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {a: b for one in _COMPARISONS for a, b in (one, one[::-1])}
_ARITHMETIC = (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv)
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {a: b for one in _ARITHMETIC for a, b in (one, one[::-1])}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """`old` of a file is `new`; `function` is the first line of the innermost function around it."""

    area: str
    path: str
    function: int
    line: int
    start: int  # bytes of the file
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.old.split())} -> {self.new}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def sample(root: Path, areas: list[str], count: int, seed: int) -> list[Mutant]:
    """The same number of each area, which is a folder of `root`."""
    chosen: list[Mutant] = []
    for area in areas:
        found = [each for path in sorted((root / area).rglob("*.py")) for each in mutants(root, area, path)]
        few = random.Random(seed).sample(found, count // len(areas))
        chosen += sorted(few, key=lambda each: (each.path, each.line))
    return chosen


def mutants(root: Path, area: str, path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for function, node, new in _changes(ast.parse(source), 0):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        name, old = str(path.relative_to(root)), source[start:end].decode()
        yield Mutant(area, name, function, node.lineno, start, end, old, new)


def _changes(node: ast.AST, function: int) -> Iterator[tuple[int, ast.expr | ast.stmt, str]]:
    if isinstance(node, ast.JoinedStr):  # positions in these are wrong before Python 3.12
        return
    if isinstance(node, Function):
        function = node.lineno
    elif function and isinstance(node, (ast.expr, ast.stmt)):
        for new in _instead(node):
            yield function, node, new
    for child in ast.iter_child_nodes(node):
        yield from _changes(child, function)


def _instead(node: ast.AST) -> Iterator[str]:
    """What may stand for this node."""
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in COMPARISONS:
            yield f"({ast.unparse(ast.Compare(left, [COMPARISONS[type(operator)]()], [right]))})"
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield f"({ast.unparse(operand)})"
        case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC and not _is_text(left, right):
            yield f"({ast.unparse(ast.BinOp(left, ARITHMETIC[type(operator)](), right))})"
        case ast.Constant(bool(value)):
            yield str(not value)
        case ast.Constant(int(value)):
            yield str(value + 1)
        case ast.IfExp(test, body, orelse):
            yield f"({ast.unparse(ast.IfExp(test, orelse, body))})"
        case ast.Expr(ast.Call(function)) if "log." not in ast.unparse(function):
            yield "pass"
        case ast.Assign([ast.Attribute()]) | ast.AugAssign(ast.Attribute()) | ast.Delete() | ast.Break():
            yield "pass"


def _is_text(*nodes: ast.expr) -> bool:
    kinds = [type(node.value) for node in nodes if isinstance(node, ast.Constant)]
    return any(isinstance(node, ast.JoinedStr) for node in nodes) or not {*kinds} <= {int, bool}
