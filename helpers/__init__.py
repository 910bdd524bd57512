"""Modules of the notebooks: studies, reports, and one folder per subject.

From the ground up: ``data``, ``networks``, ``statistics``, ``training``, ``cams``,
``measures``, ``scoring``, ``report``, ``study``; on them ``ablations``, ``kappa`` and
``checkpoints``, each for one notebook; apart from all ``sweep``, which runs notebooks.

Example:
    >>> from helpers import Study
    >>> study = Study.open("kinds20")  # doctest: +SKIP
    >>> study.models[["model_id", "gap"]]  # doctest: +SKIP
"""

from importlib import import_module
from typing import Any

# Loaded when they are asked for, so that a launcher needs no torch.
_MODULES = {
    "Report": "helpers.report.notebook",
    "Study": "helpers.study",
    "forest": "helpers.report.figures",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """A class or function by its name, from the module that has it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'helpers' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
