"""A running notebook says where it is, by tqdm's own bars, in text and in widgets."""

import json

import nbformat
import pytest

from helpers.sweep import following
from helpers.sweep.following import Bar, bar_of
from helpers.sweep.worker import perform

EMPTY = "runs:   0%|          | 0/12 [00:00<?, ?it/s]"
HALF = " 50%|#####     | 1/2 [00:01<00:01,  1.0s/it]"


@pytest.mark.parametrize(
    ("label", "numbers", "bar"),
    [
        ("runs:  25%", " 3/12 [00:10&lt;00:30,  3.33s/it, epoch 4, loss 0.31]", Bar("runs", 3, 12, 10.0, "epoch 4, loss 0.31")),
        ("models:\u2007100%", "\u20074/4\u2007[1:02:03&lt;00:00,\u2007\u20071.10it/s]", Bar("models", 4, 4, 3723.0, "")),
        (EMPTY, EMPTY, Bar("runs", 0, 12, 0.0, "")),
        (HALF, HALF, Bar("", 1, 2, 1.0, "")),
        ("", "3 models in 12 s", None),
        ("", " 0/0 [00:00<?, ?it/s]", None),
        ("", "", None),
    ],
)
def test_a_bar_is_read_as_tqdm_writes_it(label, numbers, bar):
    assert bar_of(label, numbers) == bar


@pytest.mark.parametrize("kind", ["std", "notebook"])
def test_a_notebook_leaves_where_it_is_and_how_far_its_bar_was(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(following, "_EVERY", 0.0)
    source = f"from tqdm.{kind} import tqdm\nbar = tqdm(total=4, desc='runs')\nbar.set_postfix_str('epoch 2, loss 0.5')\nbar.update(4)"
    cells = [nbformat.v4.new_markdown_cell("a"), nbformat.v4.new_code_cell(f"\n{source}\nbar.close()"), nbformat.v4.new_markdown_cell("b")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "a.ipynb")
    job = {"notebook": str(tmp_path / "a.ipynb"), "partial": str(tmp_path / "b.ipynb"), "staging": str(tmp_path / "staging")}
    job |= {"place": str(tmp_path / "now.json"), "parameters": {}, "whole": True, "cores": None, "environment": {}}
    assert perform(job).kind == "done"
    found = json.loads((tmp_path / "now.json").read_text())
    assert (found["cell"], found["cells"], found["line"]) == (2, 3, f"from tqdm.{kind} import tqdm")
    assert (found["bar"]["label"], found["bar"]["done"], found["bar"]["total"]) == ("runs", 4, 4)
    assert found["bar"]["now"] == "epoch 2, loss 0.5"
    executed = nbformat.read(tmp_path / "b.ipynb", as_version=4)
    assert {(output.output_type, output.name) for output in executed.cells[1].outputs} == {("stream", "stderr")}
    last = "".join(output.text for output in executed.cells[1].outputs).split("\r")[-1].strip()
    assert bar_of(last, last)._replace(seconds=0) == Bar("runs", 4, 4, 0, "epoch 2, loss 0.5")
    assert "widgets" not in executed.metadata


@pytest.mark.parametrize("shown", ["IntSlider(3)", "HBox([HTML('a'), FloatProgress(), IntSlider()])", "HTML('a')"])
def test_widgets_that_are_no_bars_keep_their_state_and_so_do_bars_beside_them(shown, tmp_path):
    source = "from ipywidgets import *\nfrom tqdm.notebook import tqdm\n_ = [*tqdm(range(2))]\n" + shown
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)], metadata=kernel), tmp_path / "a.ipynb")
    job = {"notebook": str(tmp_path / "a.ipynb"), "partial": str(tmp_path / "b.ipynb"), "staging": str(tmp_path / "staging")}
    job |= {"place": str(tmp_path / "now.json"), "parameters": {}, "whole": True, "cores": None, "environment": {}}
    assert perform(job).kind == "done"
    executed = nbformat.read(tmp_path / "b.ipynb", as_version=4)
    assert sum(following._VIEW in output.get("data", {}) for output in executed.cells[0].outputs) == 2
    assert executed.metadata["widgets"][following._STATE]["state"]
