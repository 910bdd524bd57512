"""How much there is to read, and how it is written: what ``make size`` prints.

Nothing here is a limit, and no test holds a number: the table shows whether a change
made the code plainer. ``python -m benchmarks.size FOLDER`` counts another tree.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from helpers.files import PROJECT_ROOT
from helpers.studies import modules_behind

WIDTH = 88
# Names that say how a value came to be instead of what it is.
VAGUE_NAMES = frozenset(
    [
        "found",
        "told",
        "said",
        "given",
        "kept",
        "known",
        "own",
        "drawn",
        "every",
        "parts",
        "here",
    ]
)
DOCUMENTED = ("data", "cams", "measures", "statistics", "scores")
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Module:
    """One file of the tree, read and parsed."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def nodes(self) -> list[ast.AST]:
        """All nodes of its syntax tree."""
        return list(ast.walk(self.tree))


def modules_of(folder: Path) -> list[Module]:
    """Read every Python file below a folder."""
    modules = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        modules.append(Module(path, text, ast.parse(text)))
    return modules


def code_tokens(text: str) -> tuple[int, int]:
    """Count tokens and lines of code.

    Args:
        text: a module.

    Returns:
        Tokens that are neither comment nor docstring nor layout, and lines that hold
        at least one of them.

    Example:
        >>> code_tokens("x = 1  # one\\n\\n")
        (3, 1)
    """
    docstrings = docstring_lines(ast.parse(text))
    lines = set()
    count = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _NOT_CODE or token.start[0] in docstrings:
            continue
        count += 1
        lines.update(range(token.start[0], token.end[0] + 1))
    return count, len(lines)


def docstring_lines(tree: ast.Module) -> set[int]:
    """Lines that docstrings stand on."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)):
            continue
        first = node.body[0] if node.body else None
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            lines.update(range(first.lineno, first.end_lineno + 1))
    return lines


def is_tuple_assignment(node: ast.AST) -> bool:
    """Whether several names are assigned from as many written values: ``a, b = x, y``."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and isinstance(node.targets[0], ast.Tuple)
    )


def is_nested_comprehension(node: ast.AST) -> bool:
    """Whether a comprehension has several loops, or holds another one."""
    if not isinstance(node, _COMPREHENSIONS):
        return False
    inner = [child for child in ast.walk(node) if isinstance(child, _COMPREHENSIONS)]
    return len(node.generators) > 1 or len(inner) > 1


def bound_names(module: Module) -> Iterator[str]:
    """Names that a module binds: variables and arguments."""
    for node in module.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def public_functions(module: Module) -> list[ast.FunctionDef]:
    """Functions of a module, and methods of its public classes."""
    functions = []
    for node in module.tree.body:
        members = [node]
        if isinstance(node, ast.ClassDef):
            members = [] if node.name.startswith("_") else node.body
        functions += [
            member
            for member in members
            if isinstance(member, _FUNCTIONS) and not member.name.startswith("_")
        ]
    return functions


def argument_names(function: ast.FunctionDef) -> list[str]:
    """Names of the arguments of a function, without ``self`` and ``cls``."""
    arguments = function.args
    items = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [item.arg for item in items if item.arg not in ("self", "cls")]


def documents_arguments(function: ast.FunctionDef) -> bool:
    """Whether the docstring of a function that takes arguments has a section on them."""
    return bool(re.search(r"^\s*Args:$", ast.get_docstring(function) or "", re.M))


def complexities(folder: Path) -> list[int]:
    """Cyclomatic complexity of each function, as ruff counts it (C901)."""
    command = [
        *(sys.executable, "-m", "ruff", "check", "--isolated", "--select", "C901"),
        *("--config", "lint.mccabe.max-complexity=0"),
        *("--output-format", "json", "--exit-zero", str(folder)),
    ]
    output = subprocess.run(command, capture_output=True, text=True, check=True)
    messages = [item["message"] for item in json.loads(output.stdout)]
    return [int(re.search(r"\((\d+) >", message)[1]) for message in messages]


def code_cells(path: Path) -> list[str]:
    """Sources of the code cells of a notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def per_thousand(
    modules: list[Module], counts: Callable[[ast.AST], bool], lines: int
) -> float:
    """How many nodes of a kind there are per 1,000 lines of code."""
    number = sum(counts(node) for module in modules for node in module.nodes)
    return 1000 * number / lines


def rows_of(root: Path) -> list[tuple[str, str]]:
    """The table: what is counted, and its number."""
    modules = modules_of(root / "helpers")
    sizes = [code_tokens(module.text) for module in modules]
    tokens = sum(size[0] for size in sizes)
    lines = sum(size[1] for size in sizes)
    texts = [line for module in modules for line in module.text.splitlines()]
    names = [name for module in modules for name in bound_names(module)]
    vague = sum(name in VAGUE_NAMES for name in names)
    functions = [
        node
        for module in modules
        for node in module.nodes
        if isinstance(node, _FUNCTIONS)
    ]
    longest = max(functions, key=lambda node: node.end_lineno - node.lineno)
    documented = [
        function
        for module in modules
        if module.path.parent.name in DOCUMENTED
        for function in public_functions(module)
        if argument_names(function)
    ]
    with_arguments = sum(map(documents_arguments, documented))
    notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    rows = [
        ("files of helpers", f"{len(modules)}"),
        ("lines of helpers", f"{len(texts):,}"),
        (f"lines over {WIDTH} columns", f"{sum(len(t) > WIDTH for t in texts):,}"),
        ("lines of code, tokens", f"{lines:,}, {tokens:,}"),
        ("tokens a line of code", f"{tokens / lines:.1f}"),
        *(
            (f"{words} per 1,000 lines", f"{per_thousand(modules, kind, lines):.1f}")
            for words, kind in (
                ("tuple assignments", is_tuple_assignment),
                ("walruses", lambda node: isinstance(node, ast.NamedExpr)),
                ("nested comprehensions", is_nested_comprehension),
            )
        ),
        ("bindings with a vague name", f"{100 * vague / len(names):.1f} %"),
        ("highest complexity", f"{max(complexities(root / 'helpers'))}"),
        ("most arguments", f"{max(len(argument_names(f)) for f in functions)}"),
        (
            "longest function, lines",
            f"{longest.end_lineno - longest.lineno + 1} ({longest.name})",
        ),
        (
            "public functions with Args in their docstring",
            f"{with_arguments} of {len(documented)} ({', '.join(DOCUMENTED)})",
        ),
    ]
    for path in notebooks:
        files = modules_behind(path, root)
        rows.append((f"files of helpers that {path.stem} imports", f"{len(files)}"))
    return rows


def main() -> None:
    """Print the table of this tree, or of the one that is named."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT_ROOT
    rows = rows_of(root)
    width = max(len(words) for words, _ in rows)
    for words, number in rows:
        print(f"{words:{width}}  {number}")


if __name__ == "__main__":
    main()
