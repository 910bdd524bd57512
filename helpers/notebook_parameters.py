"""What a notebook declares in its tagged cell, typed and commented, and equal parts of a list, named "i/n"."""

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TAG = "parameters"


class StudyError(ValueError):
    """All that is wrong with a study file, one fault a line, and the executions as far as they are known, to check them further."""

    def __init__(self, faults: Sequence[str], executions: Sequence[Any] = ()) -> None:
        """Join the faults to one message."""
        self.faults, self.executions = list(faults), list(executions)
        super().__init__("\n".join(self.faults))


@dataclass(frozen=True)
class Parameter:
    """One line of a notebook's tagged cell."""

    name: str
    annotation: str
    default: Any
    comment: str


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    """Read a notebook's code cells as plain JSON, with ``source`` as one string."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in cells if cell["cell_type"] == "code"]


def declared(notebook: Path) -> dict[str, Parameter]:
    """Read the parameters that a notebook declares: ``name: type = literal  # what it is``.

    Raises:
        StudyError: there is not exactly one tagged cell, or a line of it is no annotated literal.
    """
    tagged = [cell["source"] for cell in code_cells(notebook) if TAG in cell["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise StudyError([f"{notebook}: {len(tagged)} cells are tagged {TAG!r}; exactly one is needed"])
    lines = tagged[0].splitlines()
    found = {}
    for node in ast.parse(tagged[0]).body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None):
            raise StudyError([f"{notebook}: line {node.lineno} of the parameters cell is not `name: type = literal`"])
        comment = lines[node.end_lineno - 1][node.end_col_offset :].strip().lstrip("# ")
        name = node.target.id
        found[name] = Parameter(name, ast.unparse(node.annotation), ast.literal_eval(node.value), comment)
    return found


def check_type(annotation: str, value: Any) -> Any:
    """Check a value against an annotation as written in a notebook; an int will do for a float, nothing else is converted.

    Raises:
        ValueError: the value is of another type; the first reason is given.
    """
    from pydantic import ValidationError

    try:
        return _adapter(annotation).validate_python(value)
    except ValidationError as fault:
        first = fault.errors()[0]
        place = "".join(f"[{item}]" for item in first["loc"])
        raise ValueError(f"{place} {first['msg']}".strip()) from fault


@lru_cache
def _adapter(annotation: str) -> Any:
    from typing import Literal, Optional  # the names that an annotation may use besides the built-in types

    from pydantic import ConfigDict, TypeAdapter

    names = {kind.__name__: kind for kind in (int, float, str, bool, list, dict)} | {"Literal": Literal, "Optional": Optional}
    kind = eval(annotation, {"__builtins__": {}}, names)  # the annotation comes from a notebook of this project, not from data
    return TypeAdapter(kind, config=ConfigDict(strict=True))


_FORM = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


def shard_slice(shard: str) -> slice:
    """Turn "2/4" into the slice that takes every fourth item from the second on; "" and "1/1" take all.

    The parts of a list are disjoint, together they are the list, and their lengths differ by one at most. A slice serves lists
    (``runs[shard_slice(shard)]``) and tables (``table.iloc[shard_slice(shard)]``).

    Raises:
        ValueError: the text is no i/n with 1 <= i <= n.
    """
    if not shard:
        return slice(None)
    match = _FORM.fullmatch(shard)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"the shard is {shard!r}; write i/n with i from 1 to n, such as 2/4")
    return slice(int(match[1]) - 1, None, int(match[2]))
