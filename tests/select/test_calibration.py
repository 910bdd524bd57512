import json

import numpy as np
import pandas as pd
import pytest

from helpers.files import PROJECT_ROOT, content_digest
from helpers.select import calibration


def write(folder, rows=12, *, parquet=True):
    generator = np.random.default_rng(0)
    (folder / "tables").mkdir(parents=True)
    (folder / "story").mkdir()
    names = [f"run{number}@stop" for number in range(rows)]
    catalogue = pd.DataFrame({"model_id": names, "cell": [f"c{number // 2}" for number in range(rows)], "architecture": "resnet18"})
    catalogue["gap"], catalogue["train_accuracy"] = generator.uniform(0.1, 0.4, rows), 0.95
    catalogue["left_out"] = ["train accuracy not above 80%"] + [""] * (rows - 1)
    catalogue.to_csv(folder / "tables/catalogue.csv", index=False)
    iou = generator.uniform(0.3, 0.6, rows)
    if parquet:
        values = {("iou", ""): iou, ("nuclear_norm", "scaled"): np.ones(rows), ("nuclear_norm", "raw"): iou, ("images_scored", ""): iou}
        values[("l2", "")] = [np.nan, *iou[2:], np.nan]
        parts = [pd.DataFrame({"model_id": names, "measure": m, "variant": v, "value": x}) for (m, v), x in values.items()]
        pd.concat(parts).to_parquet(folder / "tables/scores.parquet", index=False)
    else:
        pd.DataFrame({"model_id": names, "iou": iou, "gap": 1.0, "images_scored": 5}).to_csv(folder / "tables/scores.csv", index=False)
    values = {"image_size": "64", "cam_method": "grad_cam", "width": "0.5", "stem": "small"}
    (folder / "story/03_cam_scoring.json").write_text(json.dumps([{"kind": "parameters", "values": values}]))
    return iou


@pytest.mark.parametrize("parquet", [True, False])
def test_a_study_is_read_from_the_tables_of_its_report(tmp_path, parquet):
    iou = write(tmp_path / "s", parquet=parquet)
    study = calibration.read_calibration(tmp_path, "s")
    assert study.columns == ("iou",)  # constant, undefined and further variants are no regressors
    np.testing.assert_array_equal(study.models["iou"], iou[1:])
    assert len(study.models) == 11
    assert (study.setting("image_size", 0), study.setting("cam_method", ""), study.setting("absent", 7)) == (64, "grad_cam", 7)


def test_where_nothing_is_published_what_notebooks_left_that_were_run_by_hand_calibrates(tmp_path):
    iou, scratch = write(tmp_path / "written"), tmp_path / "work/s/scratch"
    for name, notebook in (("catalogue.csv", "02_grid_training"), ("scores.parquet", "04_baselines")):
        (scratch / notebook / "tables").mkdir(parents=True)
        (tmp_path / "written/tables" / name).rename(scratch / notebook / "tables" / name)
    (tmp_path / "written/story").rename(scratch / "02_grid_training/story")
    (tmp_path / "reports").mkdir()
    study = calibration.read_calibration(tmp_path / "reports", "s", tmp_path / "work")
    np.testing.assert_array_equal(study.models["iou"], iou[1:])
    assert study.setting("image_size", 0) == 64
    published = write(tmp_path / "reports/s", rows=6)
    study = calibration.read_calibration(tmp_path / "reports", "s", tmp_path / "work")
    np.testing.assert_array_equal(study.models["iou"], published[1:])
    with pytest.raises(FileNotFoundError, match=r"'absent' has no catalogue.*; studies that have: s"):
        calibration.read_calibration(tmp_path / "reports", "absent", tmp_path / "work")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("tables/catalogue.csv", lambda content: b""),
        ("tables/catalogue.csv", lambda content: content + content.partition(b"\n")[2]),
        ("tables/catalogue.csv", lambda content: content.replace(b"gap", b"gop")),
        ("tables/catalogue.csv", lambda content: content + b"\xe9"),
        ("tables/scores.parquet", lambda content: content[:500]),
        ("story/03_cam_scoring.json", lambda content: b"[1]"),
        ("story/03_cam_scoring.json", lambda content: content[:9]),
    ],
)
def test_a_damaged_table_or_story_is_named_with_its_report_and_stops_no_other_study(tmp_path, name, damage):
    write(tmp_path / "s")
    write(tmp_path / "sound", rows=6)
    (tmp_path / "s" / name).write_bytes(damage((tmp_path / "s" / name).read_bytes()))
    told = r"/s has a damaged table or story \(.+\); take it from the repository again, or run the study again"
    with pytest.raises(ValueError, match=told):
        calibration.read_calibration(tmp_path, "s")
    with pytest.warns(UserWarning, match=f"{told}; the study is passed over"):
        assert calibration.studies(tmp_path) == ["sound"]


def test_a_table_that_is_not_as_it_was_published_is_told(tmp_path):
    write(tmp_path / "s")
    table = tmp_path / "s/tables/catalogue.csv"
    listing = {"parameters": {}, "files": {"tables/catalogue.csv": content_digest(table)}}
    (tmp_path / "s/published.json").write_text(json.dumps(listing))
    assert len(calibration.read_calibration(tmp_path, "s").models) == 11
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:8]))
    with pytest.warns(UserWarning, match=r"catalogue\.csv is not as it was published; take it from the repository again"):
        assert len(calibration.read_calibration(tmp_path, "s").models) == 6


def test_targets_whose_rows_stand_twice_are_refused(tmp_path):
    write(tmp_path / "s")
    rows = pd.DataFrame({"model_id": ["run1@stop", "run2@stop"], "target": "blur_0.9", "test_accuracy": [0.5, 0.6]})
    pd.concat([rows, rows]).to_csv(tmp_path / "s/tables/target_scores.csv", index=False)
    with pytest.raises(ValueError, match="2 of 4 rows stand twice"):
        calibration.read_targets(tmp_path, "s")


def test_what_cannot_calibrate_names_what_can(tmp_path):
    write(tmp_path / "there")
    with pytest.raises(FileNotFoundError, match=r"'absent' has no catalogue.*there"):
        calibration.read_calibration(tmp_path, "absent")
    with pytest.raises(ValueError, match="leaves the folder"):
        calibration.read_calibration(tmp_path, "../out")


def test_the_study_with_all_measures_and_most_models_comes_first(tmp_path):
    write(tmp_path / "a", parquet=False)
    write(tmp_path / "b", rows=6)
    write(tmp_path / "c", rows=10)
    assert calibration.studies(tmp_path) == ["c", "b", "a"]


def test_a_clean_clone_has_a_study_to_calibrate_with():
    study = calibration.read_calibration(PROJECT_ROOT / "reports", "compact20")
    assert len(study.models) >= 60
    assert {"iou", "iou_b"} <= set(study.columns)
    assert (study.classes, study.setting("image_size", 0)) == (20, 64)


def test_cells_are_left_out_whole(tmp_path):
    write(tmp_path / "s")
    study = calibration.without(calibration.read_calibration(tmp_path, "s"), ["c1", "c2"])
    assert set(study.models["cell"]) == {"c0", "c3", "c4", "c5"}


def test_ranges_count_what_lies_outside(tmp_path):
    write(tmp_path / "s")
    study = calibration.read_calibration(tmp_path, "s")
    low, high = study.models["iou"].min(), study.models["iou"].max()
    own = pd.DataFrame({"iou": [low, high + 1, np.nan, (low + high) / 2]}, index=list("abcd"))
    row = calibration.ranges(study, own).iloc[0]
    assert (row["defined"], row["outside"]) == (3, pytest.approx(1 / 3))
    assert row["distance"] == pytest.approx(abs((low + high) / 2 - study.models["iou"].median()) / study.models["iou"].std())
    assert calibration.usable(calibration.ranges(study, own), 4) == []
    assert calibration.usable(calibration.ranges(study, own.dropna()), 3) == ["iou"]
    far = calibration.ranges(study, own.dropna() + 10)
    assert calibration.usable(far, 3) == ["iou"]  # nothing is near, so it is an extrapolation and is said to be one


def test_differences_are_told_fact_by_fact(tmp_path):
    write(tmp_path / "s")
    study = calibration.read_calibration(tmp_path, "s")
    given = {"image_size": 64, "boxes": "annotated", "images": 10}
    table = calibration.differences(study, architectures=["resnet18"], outputs=[3], **given).set_index("what")
    assert table.loc["architectures", "same"]
    assert table.loc["image size (pixels)", "same"]
    assert not table.loc["width of the networks", "same"]
    assert table.loc["classes", "same"] is None
    own = calibration.differences(study, architectures=["vit"], outputs=[3], widths=[0.5], stems=["small"], **given).set_index("what")
    assert own.loc["width of the networks", "same"]
    assert not own.loc["architectures", "same"]
