"""Shares of notebooks for several GPUs, where the study's file names none."""

import yaml

from helpers.sweep.shares import with_shares
from helpers.sweep.study import load_study


def study(tmp_path, **blocks):
    content = {
        "common": {"device": "cuda", "work_dir": str(tmp_path)},
        "notebooks": {"01_data_subset": {}, "02_grid_training": {}},
    } | blocks
    content["notebooks"] |= {"04_baselines": {}, "07_your_checkpoints": {}}
    (tmp_path / "made.yaml").write_text(yaml.safe_dump(content))
    return load_study(tmp_path / "made.yaml")


def test_training_and_scoring_are_split_by_the_number_of_gpus(tmp_path):
    made = study(tmp_path)
    names = [item.name for item in with_shares(made, 2).executions]
    assert names == [
        "01_data_subset",
        "02_grid_training-1_of_2",
        "02_grid_training-2_of_2",
        "02_grid_training",
        "04_baselines-1_of_2",
        "04_baselines-2_of_2",
        "04_baselines",
        "07_your_checkpoints",
    ]
    assert with_shares(made, 1) is made
    shares = with_shares(made, 2).executions[4:7]
    assert [item.parameters["shard"] for item in shares] == ["1/2", "2/2", ""]
    assert shares[0].after == ("02_grid_training",)
    assert shares[2].after == ("02_grid_training", shares[0].name, shares[1].name)
    assert len({item.depends for item in shares}) == 3


def test_what_the_file_splits_and_what_runs_on_a_cpu_stays(tmp_path):
    made = study(
        tmp_path,
        sweep={"02_grid_training": {"shard": 3}},
        notebooks={"02_grid_training": {}, "03_cam_scoring": {"device": "cpu"}},
    )
    names = [item.name for item in with_shares(made, 8).executions]
    assert names[:4] == [
        *(f"02_grid_training-{number}_of_3" for number in (1, 2, 3)),
        "02_grid_training",
    ]
    assert names[4] == "03_cam_scoring"
    assert [name for name in names if "of_8" in name] == [
        f"04_baselines-{number}_of_8" for number in range(1, 9)
    ]


def test_every_notebook_that_scores_models_of_a_grid_can_be_split():
    split = {
        item.notebook[:2]
        for item in with_shares(load_study("imagenet20"), 2).executions
        if item.part
    }
    assert {"02", "03", "04", "05", "08"} >= split >= {"02", "03", "04"}
