"""The examples in docstrings give what they say."""

import doctest
import importlib

import pytest

from helpers.files import PROJECT_ROOT

WITH_EXAMPLES = [
    ".".join(path.relative_to(PROJECT_ROOT).with_suffix("").parts)
    for path in sorted((PROJECT_ROOT / "helpers").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_give_what_they_say(name):
    outcome = doctest.testmod(
        importlib.import_module(name),
        extraglobs=_names(),
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS,
    )
    assert outcome.failed == 0


def _names():
    """Libraries that examples use by their usual names."""
    import numpy as np
    import pandas as pd
    import torch

    return {"np": np, "pd": pd, "torch": torch}
