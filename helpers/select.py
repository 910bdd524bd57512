"""The earlier name of ``helpers.checkpoints``, for scripts that import it."""

import importlib
import runpy
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Modules of ``helpers.checkpoints``, as ``from helpers.select import load``."""
    if name.startswith("_"):
        raise AttributeError(name)
    return importlib.import_module(f"helpers.checkpoints.{name}")


if __name__ == "__main__":
    runpy.run_module("helpers.checkpoints", run_name="__main__", alter_sys=True)
