import json
from dataclasses import asdict, replace

import pandas as pd
import pytest

from helpers.files import write_json, write_table, write_tensors
from helpers.networks.weights import ResNetForm, header_of
from helpers.training import catalogue
from helpers.training.config import RunConfig, run_id

CONFIG = RunConfig("resnet18", 16, 0.1, "sgd", 0.0, False, False, data="d")


def complete(work, config, snapshots, status="complete"):
    folder = catalogue.run_folder(work, config)
    write_json(folder / "config.json", asdict(config))
    record = {
        "run_id": run_id(config),
        "status": status,
        "stop_reason": "rules 1+2",
        "epochs": 7,
        "seconds": 3.0,
        "device": "CPU",
    }
    write_json(folder / "result.json", record | {"snapshots": snapshots})


def snapshot(name="stop", train=0.9, test=0.6):
    losses = {"train_loss": 0.1, "test_loss": 1.0}
    return {
        "snapshot": name,
        "epoch": 7,
        **losses,
        "train_accuracy": train,
        "test_accuracy": test,
        "gap": train - test,
    }


def test_a_run_is_complete_exactly_when_its_result_is_there(tmp_path):
    other = replace(CONFIG, repeat=1)
    complete(tmp_path, CONFIG, [snapshot()])
    write_json(catalogue.run_folder(tmp_path, other) / "config.json", asdict(other))
    assert catalogue.missing(tmp_path, [CONFIG, other]) == [other]
    assert catalogue.read_catalogue(tmp_path)["run_id"].tolist() == [run_id(CONFIG)]


def test_the_catalogue_has_one_row_per_model_and_its_hyperparameters(tmp_path):
    complete(tmp_path, CONFIG, [snapshot("first", 0.8), snapshot()])
    table = catalogue.read_catalogue(tmp_path, [CONFIG])
    assert table["model_id"].tolist() == [
        f"{run_id(CONFIG)}@first",
        f"{run_id(CONFIG)}@stop",
    ]
    assert table["gap"].tolist() == pytest.approx([0.2, 0.3])
    assert set(asdict(CONFIG)) <= set(table)
    assert table["cell"].nunique() == 1
    assert set(table["kind"]) == {"resnet18 scratch plain"}


def test_the_analysis_keeps_models_strictly_above_the_threshold_and_says_why_others_are_out(
    tmp_path,
):
    complete(tmp_path, CONFIG, [snapshot("first", 0.8), snapshot("stop", 0.81)])
    complete(tmp_path, replace(CONFIG, repeat=1), [], status="diverged")
    table = catalogue.analysed(catalogue.read_catalogue(tmp_path), 0.8).set_index(
        "snapshot"
    )["left_out"]
    assert table.to_dict() == {
        "first": "train accuracy not above 80%",
        "stop": "",
        "none": "diverged before a snapshot",
    }


@pytest.mark.parametrize("name", ["train_loss", "test_loss"])
def test_a_model_with_an_infinite_loss_is_left_out_with_the_reason(tmp_path, name):
    infinite = snapshot("stop", 0.9) | {name: None}  # as train_run writes it
    complete(tmp_path, CONFIG, [infinite])
    complete(tmp_path, replace(CONFIG, repeat=1), [snapshot("stop", 0.9)])
    table = catalogue.analysed(catalogue.read_catalogue(tmp_path), 0.8)
    reasons = table.set_index("repeat")["left_out"]
    assert reasons.to_dict() == {0: "loss is not finite", 1: ""}


def test_checkpoints_that_are_kept_span_the_gaps_and_say_what_they_are(tmp_path):
    runs = [
        replace(CONFIG, stem="strided", width=0.125, repeat=number)
        for number in range(5)
    ]
    for number, run in enumerate(runs):
        complete(tmp_path, run, [snapshot(train=0.9, test=0.9 - 0.1 * number)])
        path = catalogue.snapshot_path(catalogue.run_folder(tmp_path, run), "stop")
        write_tensors(
            path, ResNetForm("resnet18", "strided", 0.125).network(3).state_dict()
        )
    table = catalogue.read_catalogue(tmp_path, runs)
    kept = catalogue.keep_checkpoints(
        tmp_path, table, tmp_path / "kept", ["a", "b", "c"], 3
    )
    assert kept["gap"].tolist() == pytest.approx([0, 0.2, 0.4])
    header = header_of(tmp_path / "kept" / kept["file"].iloc[1])
    assert header["model_id"] == kept["model_id"].iloc[1]
    assert float(header["gap"]) == pytest.approx(0.2)
    assert json.loads(header["classes"]) == ["a", "b", "c"]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == sorted(
        kept["file"]
    )
    assert (
        len(
            catalogue.keep_checkpoints(
                tmp_path, table, tmp_path / "kept", ["a", "b", "c"], 9
            )
        )
        == 5
    )


def test_late_changes_by_hand():
    history = pd.DataFrame(
        {
            "run_id": "r",
            "epoch": [1, 2, 3],
            "train_loss": [4.0, 2.0, 3.0],
            "train_accuracy": [0.0, 0.5, 0.6],
        }
    )
    changes = catalogue.late_changes(history, epochs=2)
    assert changes["loss"].tolist() == [
        -1,
        0.5,
    ]  # of the range from 4 to 2
    assert changes["accuracy"].tolist() == pytest.approx([0.5 / 0.6, 0.1 / 0.6])
    assert catalogue.late_changes(history.assign(train_loss=1.0))["loss"].isna().all()
    assert catalogue.late_changes(history, epochs=1)["epoch"].tolist() == [3]
    assert len(catalogue.late_changes(history.iloc[:0])) == 0


def test_a_missing_snapshot_says_how_to_get_it_back(tmp_path):
    complete(tmp_path, CONFIG, [snapshot()])
    row = catalogue.read_catalogue(tmp_path).iloc[0]
    message = (
        r"snapshot-stop.safetensors is missing or damaged; delete the folder .* and"
    )
    with pytest.raises(FileNotFoundError, match=message):
        catalogue.load_network(tmp_path, row, 3)
    folder = catalogue.run_folder(tmp_path, CONFIG)
    (folder / "snapshot-stop.safetensors").write_bytes(b"half a file")
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(FileNotFoundError, match=message),
    ):
        catalogue.load_network(tmp_path, row, 3)


def test_the_models_of_a_study_are_those_of_its_images_or_are_refused_with_the_command_that_mends_it(
    tmp_path,
):
    work = tmp_path / "mine"
    command = r"run notebooks/02_grid_training.ipynb for it, or `make sweep STUDY=mine MORE='--forcerun 02_grid_training'`"
    with pytest.raises(
        FileNotFoundError, match=rf"catalogue.parquet is not there: .*'mine'; {command}"
    ):
        catalogue.models_of_study(work, CONFIG.data, 0.8)
    complete(work, CONFIG, [snapshot("first", 0.8), snapshot("stop", 0.81)])
    table = catalogue.read_catalogue(work)
    write_table(work / "catalogue.parquet", table, index=False)
    pd.testing.assert_frame_equal(
        catalogue.models_of_study(work, CONFIG.data, 0.8),
        catalogue.analysed(table, 0.8),
    )
    with pytest.raises(
        ValueError,
        match=rf"trained on the images {CONFIG.data}, and notebook 01 has chosen other since; {command}",
    ):
        catalogue.models_of_study(work, "other", 0.8)
    with pytest.raises(
        ValueError,
        match=r"no network of the study 'mine' learnt enough: .* 2 models is 0.81, .* 0.9; give",
    ):
        catalogue.models_of_study(work, CONFIG.data, 0.9)


def test_from_records_a_study_has_the_snapshots_whose_values_are_recorded(tmp_path):
    """Results name both snapshots of a run; only those at the stop were scored."""
    work = tmp_path / "work/mine"
    work.mkdir(parents=True)
    records = tmp_path / "reports/mine/records"
    later = replace(CONFIG, repeat=1)  # its values are not recorded yet
    for config in (CONFIG, later):
        complete(records, config, [snapshot("first", 0.82), snapshot("stop", 0.9)])
    (records / "scores").mkdir()
    (records / f"scores/{run_id(CONFIG)}@stop.parquet").touch()
    table = catalogue.models_of_study(work, CONFIG.data, 0.8)
    expected = [f"{run_id(CONFIG)}@stop"]
    expected += [f"{run_id(later)}@{name}" for name in ("first", "stop")]
    assert sorted(table["model_id"]) == sorted(expected)
