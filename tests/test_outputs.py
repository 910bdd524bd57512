from dataclasses import replace

import pytest
import safetensors.torch
import torch
from conftest import TINY_SCENES

from helpers import model_set, outputs
from helpers.datasets import load_study_data
from helpers.grid import RunConfig
from helpers.training import train_run

RUN = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, data="", stem="strided", width=0.125, max_epochs=1)


def test_logits_of_the_test_images_are_kept_and_agree_with_the_measured_accuracy(tmp_path, monkeypatch):
    data = load_study_data(**TINY_SCENES, cache_dir=tmp_path / "cache")
    for run in (replace(RUN, data=data.fingerprint), replace(RUN, data=data.fingerprint, learning_rate=1e30, optimizer="sgd")):
        train_run(run, data, model_set.run_folder(tmp_path, run))
    table = model_set.catalogue(tmp_path)
    (model,) = outputs.keep_test_logits(tmp_path, table, data, "cpu", batch_size=5)
    logits = outputs.read_logits(tmp_path, model)
    accuracy = (logits.argmax(1) == data.test.labels).double().mean()
    row = table[table["model_id"] == model].iloc[0]
    assert float(accuracy) == row["test_accuracy"]
    metrics = outputs.metrics_of_models(tmp_path, table, data)
    assert metrics["model"].tolist() == [model]
    assert metrics["top1"].iloc[0] == row["test_accuracy"]
    assert metrics["cross_entropy"].iloc[0] == pytest.approx(row["test_loss"], rel=1e-5)
    monkeypatch.setattr(model_set, "load_model", lambda *given: pytest.fail("computed again"))
    assert list(outputs.keep_test_logits(tmp_path, table, data, "cpu")) == [model]
    safetensors.torch.save_file({"logits": torch.full_like(logits, torch.nan)}, outputs.logits_path(tmp_path, model))
    assert len(outputs.metrics_of_models(tmp_path, table, data)) == 0


def test_missing_logits_say_how_to_get_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"m\.safetensors are missing; run 02_grid_training again"):
        outputs.read_logits(tmp_path, "m")
    with pytest.raises(ValueError, match="leaves the folder"):
        outputs.logits_path(tmp_path, "../../m")
