"""What `lab.benchmarks.mutations` can change in a module: one small change each, as the text that takes a node's place.

Left out are docstrings, annotations, `if TYPE_CHECKING`, `__all__`, calls of a log, and what a `raise` says, and what
stands inside f-strings, whose places Python 3.11 does not know.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

COMPARISONS = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn}
ARITHMETIC = {ast.Add: ast.Sub, ast.Mult: ast.FloorDiv, ast.LShift: ast.RShift, ast.BitAnd: ast.BitOr}
SWAPPED = {**COMPARISONS, **ARITHMETIC} | {new: old for old, new in (COMPARISONS | ARITHMETIC).items()}
SWAPPED |= {ast.Div: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult}
EMPTY = {
    **{"bool": "False", "str": '""', "bytes": 'b""', "int": "0", "float": "0.0", "set": "set()"},
    **{"list": "[]", "Sequence": "[]", "dict": "{}", "Mapping": "{}", "tuple": "()"},
}
TEXTS = {"help", "description", "title", "message"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Site:
    path: str
    line: int
    operator: str
    before: str
    after: str
    span: tuple[int, int]
    """Where `before` stands in the module's UTF-8."""
    key: str
    """What it changes, without where: code that did not change has the same sites in another version."""
    reached: tuple[int, int] | None
    """Line and column of the statement that runs just before; None if that is while the module is imported."""


class Sites(ast.NodeVisitor):
    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source.encode()
        self.lines = self.source.splitlines(keepends=True)
        self.starts = [0, *accumulate(map(len, self.lines))]
        self.names: list[str] = []
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self.statement: ast.stmt | None = None
        self.keys = Counter[str]()
        self.found: list[Site] = []
        self.visit(ast.parse(source))

    def add(self, node: ast.AST, operator: str, after: ast.AST | str, line: int | None = None) -> None:
        assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno and node.end_col_offset is not None
        start, end = (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )
        before = self.source[start:end].decode()
        text = after if isinstance(after, str) else ast.unparse(after)
        if isinstance(node, ast.expr):
            text = f"({text})"
        first = self.lines[(self.statement or node).lineno - 1].decode().strip()
        key = "|".join((self.path.rpartition("/")[2], *self.names, first, operator, before, text))
        self.keys[key] += 1
        reached = (self.statement.lineno, self.statement.col_offset) if self.functions and self.statement else None
        self.found.append(
            Site(
                self.path, line or node.lineno, operator, before, text, (start, end), f"{key}|{self.keys[key]}", reached
            )
        )

    def visit(self, node: ast.AST) -> None:
        outer = self.statement
        if isinstance(node, ast.stmt):
            self.statement = node
        if not isinstance(node, ast.Raise | ast.JoinedStr) and not _is_log(node):
            for operator, after in _changes(node, self.functions[-1] if self.functions else None):
                self.add(node, operator, after)
            super().visit(node)
        elif isinstance(node, ast.Raise):
            self.add(node, "statement deleted", "pass")
        self.statement = outer

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for each in node.decorator_list:
            self.visit(each)
        self.names.append(node.name)
        self.functions.append(node)
        body = [each for each in node.body if not _is_text(each)]
        self.statement = body[0] if body else node
        for default in (*node.args.defaults, *(value for value in node.args.kw_defaults if value)):
            if after := _other_default(default):
                self.add(default, "default", after)
            self.visit(default)
        for each in body:
            self.visit(each)
        self.functions.pop()
        self.names.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.append(node.name)
        outer, self.functions = self.functions, []
        self.generic_visit(node)
        self.functions = outer
        self.names.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            if not self.functions and (after := _other_default(node.value)):
                self.add(node.value, "default", after)
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not _is_text(node):
            self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            return
        if not isinstance(node.test, ast.Constant):
            for value in ("True", "False")[isinstance(node, ast.While) :]:
                self.add(node.test, "condition", value)
        self.generic_visit(node)

    visit_While = visit_If
    visit_IfExp = visit_If

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.add(test, "condition", "True")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        for place, keyword in enumerate(node.keywords):
            if keyword.arg and not (keyword.arg in TEXTS and isinstance(keyword.value, ast.Constant | ast.JoinedStr)):
                kept = node.keywords[:place] + node.keywords[place + 1 :]
                after = ast.Call(func=node.func, args=node.args, keywords=kept)
                self.add(node, "keyword dropped", after, keyword.value.lineno)
        self.generic_visit(node)


def _changes(
    node: ast.AST, function: ast.FunctionDef | ast.AsyncFunctionDef | None
) -> Iterator[tuple[str, ast.AST | str]]:
    """Operators that look at one node only."""
    match node:
        case ast.Compare():
            for place, each in enumerate(node.ops):
                after = copy.copy(node)
                after.ops = [*node.ops[:place], SWAPPED[type(each)](), *node.ops[place + 1 :]]
                yield "comparison", after
        case ast.BoolOp():
            yield "and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield "not removed", node.operand
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield "constant", str(value + 1)
            yield "constant", str(value - 1)
        case ast.BinOp() if type(node.op) in SWAPPED:
            yield "arithmetic", ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)
        case ast.AugAssign() if type(node.op) in SWAPPED:
            yield "arithmetic", ast.AugAssign(node.target, SWAPPED[type(node.op)](), node.value)
            if isinstance(node.target, ast.Attribute):
                yield "statement deleted", "pass"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            named = ast.unparse(function.returns).split("[")[0] if function and function.returns else ""
            empty = EMPTY.get(named, "None")
            yield (
                "return",
                f"return {empty if ast.unparse(value) != ast.unparse(ast.parse(empty, mode='eval')) else 'None'}",
            )
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "statement deleted", "pass"
        case ast.Assign() if any(isinstance(target, ast.Attribute) for target in node.targets):
            yield "statement deleted", "pass"
        case ast.Break():
            yield "break/continue", "continue"
        case ast.Continue():
            yield "break/continue", "break"
        case _:
            pass


def _other_default(node: ast.expr) -> str | None:
    """Another constant; whole numbers are changed by an operator of their own."""
    match node:
        case ast.Constant(value=bool(value)):
            return str(not value)
        case ast.Constant(value=float(value)):
            return str(value + 1)
        case ast.Constant(value=str(value)):
            return repr(f"{value}x")
        case _:
            return None


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_log(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return False
    return ast.unparse(call.func.value).rpartition(".")[2].lstrip("_") in {"log", "logger"}
