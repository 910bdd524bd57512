"""The examples in docstrings give what they say."""

import doctest
import importlib

import pytest

from benchmarks import size
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


def test_an_example_that_is_wrong_is_seen():
    parser = doctest.DocTestParser()
    example = parser.get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(example, out=lambda text: None).failed == 1


def _names():
    """Libraries that examples use by their usual names."""
    import numpy as np
    import pandas as pd
    import torch

    return {"np": np, "pd": pd, "torch": torch}


def test_public_functions_name_their_arguments():
    """Of the folders that notebooks and strangers call."""
    folders = [*size.DOCUMENTED, "choices", "checkpoints", "kappa"]
    silent = [
        f"{module.path.relative_to(PROJECT_ROOT)}: {function.name}"
        for folder in folders
        for module in size.modules_of(PROJECT_ROOT / "helpers" / folder)
        for function in size.public_functions(module)
        if size.argument_names(function) and not size.documents_arguments(function)
    ]
    assert not silent, "give each an Args section"
