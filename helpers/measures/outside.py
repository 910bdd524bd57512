"""Source of a measure of a notebook cell, which decides its values."""

import inspect
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

from helpers.measures.registry import is_from_outside

# Values that a function reads from its module and that have a text of their own.
_PLAIN = (bool, int, float, str, bytes, tuple, list, dict, type(None))


def source_of(function: Callable[..., Any]) -> str:
    """Source of a function, with the functions and constants of its module.

    Args:
        function: of a notebook cell or a user's module.

    Returns:
        Text that changes when the function computes something else, as far as its
        own cells decide it; what it imports is left out.

    Raises:
        ValueError: if the source cannot be read, as in an interactive prompt.
    """
    sources: dict[str, str] = {}
    if isinstance(function, partial):
        arguments = f"{function.args!r} {sorted(function.keywords.items())!r}"
        return f"{source_of(function.func)}\n{arguments}"
    _collect(function, function.__name__, sources)
    return "\n".join(sources[name] for name in sorted(sources))


def _collect(function: Callable[..., Any], name: str, sources: dict[str, str]) -> None:
    try:
        sources[name] = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as fault:
        raise ValueError(
            f"the source of {name!r} cannot be read ({fault}), so that its values "
            "cannot be kept; define it in a notebook cell or a file"
        ) from fault
    variables = inspect.getclosurevars(function)
    for used, value in {**variables.globals, **variables.nonlocals}.items():
        if used in sources:
            continue
        if inspect.isfunction(value) and is_from_outside(value):
            if value.__module__ == function.__module__:
                _collect(value, used, sources)
        elif isinstance(value, _PLAIN):
            sources[used] = f"{used} = {value!r}"
