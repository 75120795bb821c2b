"""The deliberate errors: every place in a module's syntax tree where one can be made."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SWAPPED_OPERATORS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.And: "or",
    ast.Or: "and",
}
SWAPPED_NAMES = {
    "min": "max",
    "minimum": "maximum",
    "argmin": "argmax",
    "any": "all",
    "floor": "ceil",
    "sum": "mean",
    "cumsum": "cumprod",
    "tril": "triu",
}
SWAPPED_NAMES |= {b: a for a, b in SWAPPED_NAMES.items()}
FACTOR = 1.02  # on a constant
GUARD = 1e-5  # constants below it keep a divisor from zero: 2 % of them is nothing


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One error: `before` at bytes [start, stop) of the file becomes `after`."""

    id: str  # stable under edits elsewhere: a hash of room, function, statement and change
    room: str
    file: str  # from the root of the repository
    line: int
    column: int  # from 1
    kind: str
    before: str
    after: str
    start: int
    stop: int

    def apply(self, source: bytes) -> bytes:
        """The file's text with the error in it."""
        assert source[self.start : self.stop].decode() == self.before, f"{self.file} has changed"
        return source[: self.start] + self.after.encode() + source[self.stop :]


def mutants_of(room: str, file: str, source: bytes) -> list[Mutant]:
    """Every error that can be made in a file, in the order of its text."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    seen: Counter[tuple] = Counter()
    found = []
    for change in sorted(finder.found, key=lambda c: (c.start, c.stop, c.after)):
        before = source[change.start : change.stop].decode()
        words = (room, change.function, change.statement, change.kind, before, change.after)
        seen[words] += 1
        digest = hashlib.sha256(repr((*words, seen[words])).encode()).hexdigest()
        line = source[: change.start].count(b"\n") + 1
        column = change.start - source.rfind(b"\n", 0, change.start)
        place = (line, column, change.kind, before, change.after, change.start, change.stop)
        found.append(Mutant(digest[:10], room, file, *place))
    return found


def mutants_in(root: Path, room: str, files: list[str]) -> list[Mutant]:
    """Every error that can be made in a room; ids are unique."""
    found = [m for file in files for m in mutants_of(room, file, (root / file).read_bytes())]
    assert len({m.id for m in found}) == len(found), f"{room}: two errors have one id"
    return found


def compiles(source: bytes) -> bool:
    """Is it still a program?"""
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class _Change:
    kind: str
    start: int
    stop: int
    after: str
    function: str
    statement: str


class _Finder(ast.NodeVisitor):
    """Walks over what computes: not over annotations, docstrings, imports or the words of errors."""

    def __init__(self, source: bytes):
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[_Change] = []
        self.functions: list[str] = []
        self.statement = ""

    def span(self, node: ast.AST) -> tuple[int, int]:
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.AST) -> str:
        start, stop = self.span(node)
        return self.source[start:stop].decode()

    def add(self, kind: str, span: tuple[int, int], after: str) -> None:
        self.found.append(_Change(kind, *span, after, ".".join(self.functions), self.statement))

    def swap(self, kind: str, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        """Replace the operator that stands between two operands."""
        start, stop = self.span(left)[1], self.span(right)[0]
        between = self.source[start:stop].decode()
        code = "\n".join(line.partition("#")[0] for line in between.splitlines())
        if code.strip(" ()\n\\") == old and between.count(old) == 1:
            at = start + len(between[: between.index(old)].encode())
            self.add(kind, (at, at + len(old.encode())), new)

    # Where to look.

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Raise, ast.JoinedStr, ast.Assert)):
            return
        outer = self.statement
        if isinstance(node, ast.stmt):
            self.statement = ast.unparse(_head(node))
        super().visit(node)
        self.statement = outer

    def _scope(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self.functions.append(node.name)
        if isinstance(node, ast.FunctionDef):
            for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self.functions.pop()

    visit_FunctionDef = visit_ClassDef = _scope

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = {t.id for t in node.targets if isinstance(t, ast.Name)}
        if "__all__" in names:
            return
        used = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        if names & used:
            self.add("update dropped", self.span(node), "pass")
        self.generic_visit(node)

    # What to change.

    def visit_BinOp(self, node: ast.BinOp) -> None:
        words = any(isinstance(n, ast.JoinedStr) or _is_text(n) for n in (node.left, node.right))
        if not words:
            old = _symbol(node.op)
            if new := SWAPPED_OPERATORS.get(type(node.op)):
                self.swap("operator", node.left, node.right, old, new)
            if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
                left = self.text(node.left)
                bare = isinstance(node.left, (ast.Name, ast.Attribute, ast.Constant, ast.Call))
                self.add("term dropped", self.span(node), left if bare else f"({left})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        new = SWAPPED_OPERATORS[type(node.op)]
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.swap("operator", left, right, _symbol(node.op), new)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            self.swap("comparison", left, right, _symbol(op), SWAPPED_OPERATORS[type(op)])
            left = right
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if not isinstance(node.op, ast.UAdd):
            self.add("sign dropped", self.span(node), f"({self.text(node.operand)})")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        old, new = _symbol(node.op), SWAPPED_OPERATORS.get(type(node.op))
        if new:
            self.swap("operator", node.target, node.value, f"{old}=", f"{new}=")
        self.add("update dropped", self.span(node), "pass")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add("constant", self.span(node), str(not value))
        elif isinstance(value, int):
            self.add("constant", self.span(node), str(value + 1))
        elif isinstance(value, float) and not 0 < value < GUARD:
            after = value * FACTOR if value else 1.0
            self.add("constant", self.span(node), f"{after:.12g}" if after % 1 else repr(after))

    def visit_IfExp(self, node: ast.IfExp) -> None:
        body, test, other = map(self.text, (node.body, node.test, node.orelse))
        self.add("branches swapped", self.span(node), f"{other} if {test} else {body}")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.add("condition", self.span(node.test), f"not ({self.text(node.test)})")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name, arguments = _name(node.func), [self.text(a) for a in node.args]
        if name == "where" and len(arguments) == 3:
            condition, yes, no = arguments
            swapped = f"{self.text(node.func)}({condition}, {no}, {yes})"
            self.add("branches swapped", self.span(node), swapped)
        elif name == "clip" and len(arguments) == 3:
            self.add("clip removed", self.span(node), f"({arguments[0]})")
        elif _is_limit(name, node.args):
            self.add("limit removed", self.span(node), f"({arguments[0]})")
        if name in SWAPPED_NAMES:
            stop = self.span(node.func)[1]
            span = (stop - len(name), stop)
            self.add("function", span, SWAPPED_NAMES[name])
        self.generic_visit(node)


def _head(node: ast.stmt) -> ast.AST:
    """A statement without the statements inside it: an edit there does not touch its errors."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return ast.Name(node.name, ast.Load())
    if isinstance(node, (ast.If, ast.While)):
        return node.test
    if isinstance(node, ast.For):
        return ast.Tuple([node.target, node.iter], ast.Load())
    if isinstance(node, ast.With):
        return ast.Tuple([item.context_expr for item in node.items], ast.Load())
    if isinstance(node, ast.Try):
        return ast.Name("try", ast.Load())
    return node


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_limit(name: str, arguments: list[ast.expr]) -> bool:
    bounds = name in ("maximum", "minimum", "max", "min") and len(arguments) == 2
    return bounds and isinstance(arguments[1], ast.Constant)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _symbol(op: ast.AST) -> str:
    """How an operator is written."""
    one, two = ast.Name("a", ast.Load()), ast.Name("b", ast.Load())
    if isinstance(op, ast.boolop):
        return ast.unparse(ast.BoolOp(op, [one, two]))[2:-2]
    if isinstance(op, ast.cmpop):
        return ast.unparse(ast.Compare(one, [op], [two]))[2:-2]
    return ast.unparse(ast.BinOp(one, op, two))[2:-2]


def all_changes(source: str) -> Iterator[str]:
    """Every erroneous version of a piece of code: for the tests of this module."""
    for mutant in mutants_of("", "", source.encode()):
        yield mutant.apply(source.encode()).decode()
