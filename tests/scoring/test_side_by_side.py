import os
from functools import partial

import pandas as pd
import pytest

from helpers.data import manifest
from helpers.scoring.side_by_side import each_model
from tests.conftest import TINY_SCENES

TABLE = pd.DataFrame({"model_id": ["a", "b", "c", "d"], "snapshot": ["stop", "none", "first", "stop"], "number": [1, 2, 3, 4]})


def note(work, row, data, word):
    """Leave a file that says which process did what."""
    (name,) = row["model_id"]
    if name == word:
        raise ValueError("no")
    (work / f"{name}.txt").write_text(f"{os.getpid()} {row['number'].item()} {len(data.train)} {word}")


@pytest.fixture
def work(tmp_path):
    manifest.choose_images(tmp_path, **TINY_SCENES)
    return tmp_path


def told(work):
    return {path.stem: path.read_text().split() for path in work.glob("?.txt")}


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_model_is_worked_on_once_whichever_the_number_of_processes(work, jobs):
    images = manifest.of_study(work)
    found = list(each_model(note, work, TABLE, images, ["c", "d"], ["x"], device="cpu", jobs=jobs))
    assert (found[0], sorted(found)) == ("a", ["a", "c", "d"])  # "b" is no model, "a" has everything
    assert {name: rest for name, (_, *rest) in told(work).items()} == {
        "c": ["3", str(len(images.train)), "x"],
        "d": ["4", str(len(images.train)), "x"],
    }
    own = {pid == str(os.getpid()) for pid, *_ in told(work).values()}
    assert own == {jobs == 1}


def test_where_there_is_nothing_to_do_no_process_starts(work, monkeypatch):
    monkeypatch.setattr("helpers.scoring.side_by_side.ProcessPoolExecutor", lambda *given, **named: pytest.fail("started"))
    assert list(each_model(note, work, TABLE, None, [], ["x"], device="cpu", jobs=2)) == ["a", "c", "d"]


def test_a_fault_is_told_after_the_others_are_done(work):
    done = partial(each_model, note, work, TABLE, None, ["a", "c", "d"], ["c"], device="cpu", jobs=2)
    with pytest.raises(RuntimeError, match=r"^1 of 3 models could not be scored; the others are complete\. c: ValueError: no$"):
        list(done())
    assert sorted(told(work)) == ["a", "d"]
