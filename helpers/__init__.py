"""A thin layer under the notebooks: one room per subject, each knowing only the rooms before it.

In order: ``data``, ``networks``, ``statistics``, ``training``, ``cams``, ``measures``, ``scoring``, ``report``; on them ``ablations``,
``kappa`` and ``select``, each for one notebook; apart from all ``sweep``, which runs notebooks and knows no machine learning.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def face(room: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a room, which imports a module when one of its names is first asked for: a notebook waits for what it uses.

    Args:
        room: full name of the package.
        names: what a notebook may use, by the module that holds it; the module itself may be asked for too.
    """
    modules = {name: module for module, listed in names.items() for name in listed}

    def found(name: str) -> Any:
        if name in modules:
            return getattr(import_module(f"{room}.{modules[name]}"), name)
        if name in names:
            return import_module(f"{room}.{name}")
        raise AttributeError(f"{room} has no {name!r} for notebooks; it has {', '.join(sorted({*modules, *names}))}")

    return found
