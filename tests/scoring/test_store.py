"""What is computed of a model is kept: computed once, read as it was written, made anew where it is damaged."""

import numpy as np
import pandas as pd
import pytest

from helpers.scoring.models import Model
from helpers.scoring.store import Store

MODELS = [Model(name, lambda device: None) for name in ("a", "b")]


def record(model, factor):
    table = pd.DataFrame(
        {
            "measure": ["x", "y"],
            "value": [0.5 * factor, np.nan],
            "reason": ["", "no boxes, ü"],
            "fine": [True, False],
        }
    )
    return {
        "scores": table,
        "single": np.array([1.0, np.nan, 3.0], dtype=np.float32) * factor,
        "bits": np.array([True, False]),
        "maps_16": np.zeros((3, 2, 2), dtype=np.uint16),  # too large to be stacked
    }


class Noted:
    """Computes records, and notes for which model and parts it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, model, shared, parts):
        self.asked.append((model.model_id, list(parts)))
        return {part: record(model, shared) for part in parts}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, lambda: 2.0, jobs=1)


def test_what_is_kept_is_read_as_it_was_written_and_computed_once(store):
    compute = Noted()
    kept = store.each(MODELS, {"p": {"seed": 1}, "q": {}}, compute)
    assert compute.asked == [("a", ["p", "q"]), ("b", ["p", "q"])]
    found = kept.record("p", "a")
    pd.testing.assert_frame_equal(
        found["scores"], record(MODELS[0], 2.0)["scores"], check_dtype=False
    )
    np.testing.assert_array_equal(found["single"], [2.0, np.nan, 6.0])
    assert found["bits"].dtype == bool
    again = store.each(MODELS, {"q": {}, "p": {"seed": 1}}, compute)
    assert len(compute.asked) == 2
    assert again.table("q", "scores")["model_id"].tolist() == ["a", "a", "b", "b"]


def test_another_setting_is_another_folder_and_a_further_part_is_computed_alone(store):
    compute = Noted()
    store.each(MODELS, {"p": {"seed": 1}}, compute)
    store.each(MODELS, {"p": {"seed": 2}}, compute)
    store.each(MODELS[:1], {"p": {"seed": 1}, "q": {}}, compute)
    assert compute.asked[2:] == [("a", ["p"]), ("b", ["p"]), ("a", ["q"])]
    assert len(list(store.folder.iterdir())) == 3


def test_values_are_stacked_in_the_order_of_the_models_and_nan_where_a_model_has_none(
    store,
):
    kept = store.each(MODELS, {"p": {}}, Noted())
    kept._path("p", "a").unlink()
    stacked = kept.stacked("p")
    assert set(stacked) == {"single", "bits"}
    np.testing.assert_array_equal(stacked["single"], [[np.nan] * 3, [2.0, np.nan, 6.0]])
    np.testing.assert_array_equal(stacked["bits"], [[np.nan] * 2, [1, 0]])
    assert set(kept.stacked("p", leave_out=["bits"])) == {"single"}
    assert {values.dtype for values in stacked.values()} == {np.dtype("float32")}
    assert [name for name, _ in kept.records("p")] == ["b"]


@pytest.mark.parametrize("damage", [b"", b"half a file", None])
def test_a_damaged_file_is_said_and_computed_anew(store, damage):
    compute = Noted()
    kept = store.each(MODELS, {"p": {}}, compute)
    path = kept._path("p", "a")
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    with pytest.warns(
        UserWarning,
        match=r"a\.npz is damaged .* made anew when the notebook runs again",
    ):
        assert kept.record("p", "a") == {}
    assert store.each(MODELS, {"p": {}}, compute).record("p", "a")["single"][0] == 2.0
    assert compute.asked[2:] == [("a", ["p"])]


def test_nothing_is_unpickled_and_no_name_leaves_the_folder(store):
    kept = store.each(MODELS, {"p": {}}, Noted())
    with kept._path("p", "a").open("wb") as file:
        np.savez(file, single=np.array([{"code": 1}], dtype=object))
    with pytest.warns(UserWarning, match="damaged"):
        assert kept.record("p", "a") == {}
    with pytest.raises(ValueError, match="leaves the folder"):
        store.each([Model("../../outside", lambda device: None)], {"p": {}}, Noted())
