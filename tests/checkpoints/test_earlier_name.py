"""Commands and imports by the name that the folder had before."""

import runpy
import sys

import pytest


def test_the_earlier_name_is_the_same_command_and_has_the_same_modules(
    monkeypatch, capsys
):
    from helpers.checkpoints import load
    from helpers.select import load as earlier

    assert earlier is load
    monkeypatch.delitem(sys.modules, "helpers.select")
    monkeypatch.setattr(sys, "argv", ["select", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("helpers.select", run_name="__main__")
    assert ended.value.code == 0
    assert "--labelled" in capsys.readouterr().out
