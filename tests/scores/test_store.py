"""What is computed of a network is stored: computed once, read as it was written, added to."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from helpers.files import DamagedFileError
from helpers.scores import values
from helpers.scores.measuring import with_measures
from helpers.scores.models import Model
from helpers.scores.store import Store

MODELS = [Model(name, lambda device: None) for name in ("a", "b")]


def record(factor):
    scores = pd.DataFrame({"measure": ["x", "y"], "threshold": [0.1, np.nan]})
    scores["value"] = [0.5 * factor, np.nan]
    scores["reason"] = ["", "no boxes, ü"]
    single = np.array([1.0, np.nan, 3.0], dtype=np.float32) * factor
    return {"scores": scores, "single": single, "maps": np.zeros((3, 2, 2), "uint8")}


class Noted:
    """Computes records, and notes for which model and parts it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, model, shared, parts):
        self.asked.append((model.model_id, list(parts)))
        time.sleep(0.02)  # another one asks meanwhile
        return {part: record(shared) for part in parts}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "work/study", lambda: 2.0, jobs=1)


def test_what_another_notebook_computes_meanwhile_is_not_computed_again(tmp_path):
    """It writes between the look at what is missing and the work on it."""
    work = tmp_path / "work/study"
    other = Store(work, lambda: None, jobs=1)

    def shared():
        if not other.records(MODELS[:1], {"p": {}}).record("p", "a"):
            other.write(MODELS[0], "p", {}, record(3.0))
        return 2.0

    compute = Noted()
    store = Store(work, shared, jobs=1)
    records = store.each(MODELS[:1], {"p": {}, "q": {}}, compute)
    assert compute.asked == [("a", ["q"])]
    assert records.record("p", "a")["single"].tolist()[0] == 3.0


def test_values_are_read_as_they_were_written_and_computed_once(store):
    compute = Noted()
    records = store.each(MODELS, {"p": {"seed": 1}, "q": {}}, compute)
    assert compute.asked == [("a", ["p", "q"]), ("b", ["p", "q"])]
    read = records.record("p", "a")
    expected = record(2.0)["scores"]
    pd.testing.assert_frame_equal(read["scores"][expected.columns], expected)
    np.testing.assert_array_equal(read["single"], [2.0, np.nan, 6.0])
    assert read["maps"].dtype == np.uint8
    again = store.each(MODELS, {"q": {}, "p": {"seed": 1}}, compute)
    assert len(compute.asked) == 2
    assert again.scores("q")["model_id"].tolist() == ["a", "a", "b", "b"]
    table = pd.read_parquet(store.folder / "scores")  # all networks at once
    assert len(table) == 2 * 2 * 2
    assert list(table.columns) == list(values.COLUMNS)


def test_other_settings_are_further_rows_and_a_further_part_is_computed_alone(store):
    compute = Noted()
    for seed in (1, 2):
        store.each(MODELS, {"p": {"seed": seed}}, compute)
    store.each(MODELS[:1], {"p": {"seed": 1}, "q": {}}, compute)
    assert compute.asked[2:] == [("a", ["p"]), ("b", ["p"]), ("a", ["q"])]
    assert [one["seed"] for one in store.settings_of("p")] in ([1, 2], [2, 1])
    assert len(store.records(MODELS, {"p": {"seed": 1}}).scores()) == 4


def test_values_of_images_stand_in_the_order_of_the_models(store):
    store.each(MODELS[1:], {"p": {}}, Noted())
    records = store.records(MODELS, {"p": {}})
    of_images = records.of_images("p")
    assert set(of_images) == {"single"}  # maps have more dimensions
    expected = [[np.nan] * 3, [2.0, np.nan, 6.0]]
    np.testing.assert_array_equal(of_images["single"], expected)
    assert of_images["single"].dtype == np.float32
    assert records.complete == ["b"]


def test_without_scores_arrays_alone_are_not_taken_for_complete(store):
    """As a process leaves it that is killed between the two files of a network."""
    compute = Noted()
    store.each(MODELS[:1], {"p": {}}, compute)
    (store.folder / "scores/a.parquet").unlink()
    store.each(MODELS[:1], {"p": {}}, compute)
    assert compute.asked == [("a", ["p"])] * 2


def test_arrays_without_scores_get_a_row_that_says_they_are_there(store):
    records = store.each(MODELS, {"p": {}}, lambda *given: {"p": {"x": np.ones(2)}})
    assert records.complete == ["a", "b"]
    assert records.scores("p")["measure"].tolist() == [values.COMPLETE] * 2


def test_a_part_of_which_nothing_was_computed_leaves_nothing(store):
    parts = {"p": {}, "q": {}}
    with pytest.raises(RuntimeError, match=r"2 of 2 failed.* KeyError: 'p'"):
        store.each(MODELS, parts, lambda *given: {"q": {"x": np.ones(1)}})
    assert not list(store.folder.rglob("*.npz"))


@pytest.mark.parametrize("name", ["scores/a.parquet", "arrays/a.npz"])
def test_a_damaged_file_is_named(store, name):
    store.each(MODELS, {"p": {}}, Noted())
    path = store.folder / name
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DamagedFileError, match=rf"{path.name} is damaged"):
        store.each(MODELS, {"p": {}}, Noted()).record("p", "a")


def test_nothing_is_unpickled_and_no_name_leaves_the_folder(store):
    store.each(MODELS, {"p": {}}, Noted())
    with (store.folder / "arrays/a.npz").open("wb") as file:
        np.savez(file, single=np.array([{"code": 1}], dtype=object))
    with pytest.raises(DamagedFileError, match="damaged"):
        store.records(MODELS, {"p": {}}).record("p", "a")
    with pytest.raises(ValueError, match="leaves the folder"):
        store.each([Model("../../outside", lambda device: None)], {"p": {}}, Noted())


def test_values_of_other_weights_are_left_out_and_computed_again(store):
    def of_weights(digest):
        return [Model("a", lambda device: None, weights=digest)]

    compute = Noted()
    store.each(of_weights("1" * 16), {"p": {}}, compute)
    store.each(of_weights(""), {"p": {}}, compute)  # unknown weights take what is there
    assert len(compute.asked) == 1
    store.each(of_weights("2" * 16), {"p": {}}, compute)
    assert len(compute.asked) == 2
    scores = values.read_scores(store.folder, "a")
    assert set(scores["weights"]) == {"2" * 16}


def test_scores_of_no_network_can_be_joined_to_a_table_of_none(store):
    scores = store.records([], {"p": {}}).scores()
    models = pd.DataFrame({"model_id": ["a"], "gap": [0.1]})[:0]
    assert with_measures(models, scores).empty


def test_processes_that_score_one_network_at_once_keep_what_both_computed(store):
    """Notebooks run side by side; each adds its parts to the file of a network."""

    def write(number):
        store.write(MODELS[0], f"p{number}", {}, {"x": np.full(3, number)})

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(write, range(12)))
        compute = Noted()
        list(executor.map(lambda _: store.each(MODELS[1:], {"q": {}}, compute), "ab"))
    assert len(compute.asked) == 1  # the other one waits
    records = store.records(MODELS[:1], {f"p{number}": {} for number in range(12)})
    for number in range(12):
        assert records.record(f"p{number}", "a")["x"].tolist() == [number] * 3
