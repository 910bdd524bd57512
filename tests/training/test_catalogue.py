import json
from dataclasses import asdict, replace

import pandas as pd
import pytest

from helpers.files import folder_of_run, write_json, write_table, write_tensors
from helpers.networks import resnet
from helpers.networks.weights import header_of
from helpers.training import catalogue
from helpers.training.config import RunConfig

CONFIG = RunConfig(
    *("resnet18", 16, 0.1, "sgd", 0.0, False, False, "d"), stem="strided", width=0.125
)


def complete(work, config, snapshots):
    folder = folder_of_run(work, str(config))
    write_json(folder / "config.json", asdict(config))
    record = {"run_id": str(config), "snapshots": snapshots, "device": "CPU"}
    record |= {"stop_reason": "rules 1+2", "epochs": 7, "seconds": 3.0}
    write_json(folder / "result.json", record)


def snapshot(name="stop", train=0.9, test=0.6, **changes):
    facts = {"snapshot": name, "epoch": 7, "train_loss": 0.1, "test_loss": 1.0}
    facts |= {"train_accuracy": train, "test_accuracy": test, "gap": train - test}
    return facts | changes


def test_a_run_is_complete_exactly_when_its_result_is_there(tmp_path):
    other = replace(CONFIG, repeat=1)
    complete(tmp_path, CONFIG, [snapshot("first", 0.8), snapshot()])
    write_json(folder_of_run(tmp_path, str(other)) / "config.json", asdict(other))
    assert catalogue.missing(tmp_path, [CONFIG, other]) == [other]
    table = catalogue.read_catalogue(tmp_path)
    names = [f"{CONFIG!s}@{name}" for name in ("first", "stop")]
    assert table["model_id"].tolist() == names
    assert table["gap"].tolist() == pytest.approx([0.2, 0.3])
    assert set(asdict(CONFIG)) <= set(table)


def test_the_analysis_keeps_models_above_the_threshold(tmp_path):
    complete(tmp_path, CONFIG, [snapshot("first", 0.8), snapshot("stop", 0.81)])
    complete(tmp_path, replace(CONFIG, repeat=1), [])
    # None is how train_run writes a loss that is not finite.
    for repeat, name in ((2, "train_loss"), (3, "test_loss")):
        run = replace(CONFIG, repeat=repeat)
        complete(tmp_path, run, [snapshot(f"of {name}", **{name: None})])
    table = catalogue.analysed(catalogue.read_catalogue(tmp_path), 0.8)
    assert table.set_index("snapshot")["left_out"].to_dict() == {
        "first": "train accuracy not above 80%",
        "stop": "",
        "none": "loss is not finite",
        "of train_loss": "loss is not finite",
        "of test_loss": "loss is not finite",
    }


def test_checkpoints_that_are_kept_span_the_gaps_and_say_what_they_are(tmp_path):
    runs = [replace(CONFIG, repeat=number) for number in range(5)]
    form = {"stem": "strided", "width": 0.125, "seed": 0}
    state = resnet.build("resnet18", 3, **form).state_dict()
    for number, run in enumerate(runs):
        complete(tmp_path, run, [snapshot(train=0.9, test=0.9 - 0.1 * number)])
        folder = folder_of_run(tmp_path, str(run))
        write_tensors(catalogue.snapshot_path(folder, "stop"), state)
    table = catalogue.read_catalogue(tmp_path, runs)
    folder, classes = tmp_path / "chosen", ["a", "b", "c"]
    chosen = catalogue.keep_checkpoints(tmp_path, table, folder, classes, 3)
    assert chosen["gap"].tolist() == pytest.approx([0, 0.2, 0.4])
    header = header_of(folder / chosen["file"].iloc[1])
    assert header["model_id"] == chosen["model_id"].iloc[1]
    assert float(header["gap"]) == pytest.approx(0.2)
    assert json.loads(header["classes"]) == classes
    assert {path.name for path in folder.iterdir()} == {*chosen["file"]}
    assert len(catalogue.keep_checkpoints(tmp_path, table, folder, classes, 9)) == 5


def test_late_changes_by_hand():
    history = pd.DataFrame({"run_id": "r", "epoch": range(1, 12)})
    history["train_loss"] = [4.0, 2.0, 3.0, *[2.0] * 8]
    history["train_accuracy"] = [0.0, 0.5, *[0.6] * 9]
    changes = catalogue.late_changes(history)
    assert changes.index.tolist() == [("r", epoch) for epoch in range(2, 12)]
    expected = [-1, 0.5, -0.5, *[0] * 7]  # of the range from 4 to 2
    assert changes["loss"].tolist() == expected
    expected = [0.5 / 0.6, 0.1 / 0.6, *[0] * 8]
    assert changes["accuracy"].tolist() == pytest.approx(expected)
    assert catalogue.late_changes(history.assign(train_loss=1.0))["loss"].isna().all()
    assert len(catalogue.late_changes(history.iloc[:0])) == 0


def test_a_missing_snapshot_says_how_to_get_it_back(tmp_path):
    complete(tmp_path, CONFIG, [snapshot(digest="of other weights")])
    row = catalogue.read_catalogue(tmp_path).iloc[0]
    message = "snapshot-stop.safetensors is missing or damaged; delete the folder"
    with pytest.raises(FileNotFoundError, match=message):
        catalogue.load_network(tmp_path, row, 3)
    write_tensors(catalogue.weights_path(tmp_path, row), {})
    with pytest.raises(FileNotFoundError, match=message):
        catalogue.load_network(tmp_path, row, 3)


def test_models_of_other_images_are_refused_with_what_to_do(tmp_path):
    work = tmp_path / "mine"
    remedy = "run notebook 02 of the study 'mine'"
    with pytest.raises(FileNotFoundError, match=rf"parquet is not there; {remedy}"):
        catalogue.models_of_study(work, CONFIG.data, 0.8)
    complete(work, CONFIG, [snapshot("first", 0.8), snapshot("stop", 0.81)])
    table = catalogue.read_catalogue(work)
    write_table(work / "catalogue.parquet", table, index=False)
    models = catalogue.models_of_study(work, CONFIG.data, 0.8)
    pd.testing.assert_frame_equal(models, catalogue.analysed(table, 0.8))
    with pytest.raises(ValueError, match=rf"images d, .* other since; {remedy}"):
        catalogue.models_of_study(work, "other", 0.8)
    with pytest.raises(ValueError, match=rf"learnt enough: .* 0.81, .* 0.9;.*{remedy}"):
        catalogue.models_of_study(work, CONFIG.data, 0.9)


def test_from_records_a_study_has_the_snapshots_whose_values_are_recorded(tmp_path):
    """Results name both snapshots of a run; only those at the stop were scored."""
    work = tmp_path / "work/mine"
    work.mkdir(parents=True)
    records = tmp_path / "reports/mine/records"
    unscored, diverged = (replace(CONFIG, repeat=number) for number in (1, 2))
    for config in (CONFIG, unscored):
        complete(records, config, [snapshot("first", 0.82), snapshot("stop", 0.9)])
    complete(records, diverged, [])
    write_table(records / f"scores/{CONFIG!s}@stop.parquet", pd.DataFrame())
    table = catalogue.models_of_study(work, CONFIG.data, 0.8)
    expected = [f"{CONFIG!s}@stop", f"{diverged!s}@none"]
    assert table["model_id"].tolist() == expected
    assert len(catalogue.read_catalogue(work)) == 3
    runs = [CONFIG, unscored, diverged]
    assert catalogue.missing(work, runs) == [unscored]
