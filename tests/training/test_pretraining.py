"""The recipe by which starts are made where none are published."""

from dataclasses import asdict, replace

from helpers.files import write_json
from helpers.training import catalogue


def test_starts_that_no_run_needs_any_more_are_named_by_the_records(tmp_path):
    work = tmp_path / "work/study"
    (recipe,) = catalogue.recipes(["resnet18"], "images", {})
    pretrained = replace(recipe, pretrained=True)
    scratch = replace(recipe, seed=1)
    start = str(recipe)
    for run in (replace(pretrained, weights=start), scratch):
        folder = tmp_path / "reports/study/records/runs" / str(run)
        write_json(folder / "config.json", asdict(run))
        result = {"run_id": str(run), "snapshots": [], "stop_reason": "diverged"}
        result |= {"epochs": 1, "seconds": 1, "device": ""}
        write_json(folder / "result.json", result)
    starts = catalogue.weights_of_records([pretrained, scratch], work)
    assert starts == {"resnet18": start}
    missing_run = replace(pretrained, repeat=1)
    assert catalogue.weights_of_records([pretrained, missing_run], work) == {}
    other_architecture = replace(pretrained, architecture="resnet34")
    assert catalogue.weights_of_records([other_architecture], work) == {}
