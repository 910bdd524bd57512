"""The examples in docstrings give what they say."""

import doctest
import importlib

import numpy as np
import pandas as pd
import pytest
import torch

from helpers.files import PROJECT_ROOT

WITH_EXAMPLES = [
    ".".join(path.relative_to(PROJECT_ROOT).with_suffix("").parts)
    for path in sorted((PROJECT_ROOT / "helpers").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_give_what_they_say(name):
    names = {"np": np, "pd": pd, "torch": torch}
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs=names, optionflags=flags).failed == 0
