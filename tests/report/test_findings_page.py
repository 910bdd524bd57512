"""The page of findings: written from committed tables, checked against them, and refused where they are missing."""

import numpy as np
import pandas as pd
import pytest

from helpers.files import PROJECT_ROOT
from helpers.report import findings_page
from helpers.statistics.replication import Sampling

PAGES = sorted((PROJECT_ROOT / "reports").glob("*/FINDINGS.md"))


@pytest.fixture
def reports(tmp_path):
    """Tables of a made-up study of 24 models, as notebooks 02 and 04 leave them."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "made_up/tables"
    folder.mkdir(parents=True)
    n = 24
    train, test = rng.uniform(0.85, 1, n), rng.uniform(0.3, 0.8, n)
    train[0] = 0.4
    catalogue = pd.DataFrame(
        {
            "model_id": [f"r{number}@stop" for number in range(n)],
            "run_id": [f"r{number}" for number in range(n)],
            "cell": [f"c{number // 2}" for number in range(n)],
            "status": "complete",
            "snapshot": "stop",
            "train_accuracy": train,
            "test_accuracy": test,
            "gap": train - test,
            "seconds": 10.0,
            "device": "one machine",
            "architecture": np.where(np.arange(n) % 2, "resnet18", "resnet34"),
            "batch_size": np.where(np.arange(n) % 4 < 2, 16, 32),
            "learning_rate": 0.01,
            "optimizer": "sgd",
            "weight_decay": 0.0,
            "augmentation": False,
            "pretrained": False,
            "images_per_class": 0,
            "label_noise": 0.0,
            "left_out": ["train accuracy not above 80%"] + [""] * (n - 1),
        }
    )
    catalogue.to_csv(folder / "catalogue.csv", index=False)
    scores = [
        pd.DataFrame({"model_id": catalogue["model_id"], "measure": name, "variant": "", "value": values, "seconds": 1.0, "reason": ""})
        for name, values in (("iou", -catalogue["gap"]), ("iou_b", rng.normal(size=n)))
    ]
    pd.concat(scores).to_parquet(folder / "scores.parquet", index=False)
    levels = {"hyperparameter": ["batch_size"], "levels": ["16, 32"], "published": ["16, 32, 64"]}
    pd.DataFrame(levels).to_csv(folder / "table2_hyperparameters.csv", index=False)
    pd.DataFrame({"class_id": ["a"], "test_images": [100]}).to_csv(folder / "table1_categories.csv", index=False)
    return tmp_path


def run(reports, *options):
    return findings_page.main(["made_up", "--reports", str(reports), *options])


def test_a_page_is_written_and_passes_its_check(reports, capsys):
    (reports / "made_up/LEFT_OUT.md").write_text("Augmentation, for want of time.\n")
    assert run(reports, "--write") == 0
    text = (reports / "made_up/FINDINGS.md").read_text()
    assert "r of IoU with the gap is **-1.00**" in text
    assert "23 models above 80 %" in text
    assert "24 models, fewer than 150, this is a **pilot**" in text
    assert "Left out: 1 model, train accuracy not above 80%" in text
    assert "Augmentation, for want of time." in text
    assert "IoU is number 1 of 2" in text
    assert "nan" not in text
    assert run(reports) == 0
    assert "every number" in capsys.readouterr().out


def test_a_number_that_was_changed_by_hand_fails_and_is_shown(reports, capsys):
    run(reports, "--write")
    path = reports / "made_up/FINDINGS.md"
    path.write_text(path.read_text().replace("-1.00**", "-0.99**"))
    capsys.readouterr()
    assert run(reports) == 1
    shown = capsys.readouterr().out
    assert "-0.99**" in shown
    assert "+" in shown
    path.unlink()
    assert run(reports) == 1


def test_a_table_that_moved_fails(reports):
    run(reports, "--write")
    path = reports / "made_up/tables/scores.parquet"
    scores = pd.read_parquet(path)
    scores.loc[(scores["measure"] == "iou") & (scores["model_id"] == "r3@stop"), "value"] = 5.0
    scores.to_parquet(path, index=False)
    assert run(reports) == 1


def test_a_study_without_scores_is_refused_by_name(reports, capsys):
    (reports / "made_up/tables/scores.parquet").unlink()
    assert run(reports) == 2
    assert "04_baselines" in capsys.readouterr().err


def mask_metrics(true: float, extra: float, missed: float) -> dict[str, float]:
    """The four metrics of masks, from the shares of pixels that are rightly, wrongly and not covered."""
    rest = 1 - true - extra - missed
    item, background = true / (true + extra + missed), rest / (rest + extra + missed)
    return {
        "mask_agreement": (item + background) / 2,
        "mask_agreement (IoU of the object)": item,
        "mask_agreement (frequency-weighted IoU)": (true + missed) * item + (extra + rest) * background,
        "mask_agreement (pixel accuracy)": true + rest,
    }


@pytest.mark.parametrize(
    ("true", "extra", "missed", "able"), [(0.5, 0.4, 0.02, False), (0.2, 0.3, 0.1, True), (0.2, 0.45, 0.1, False), (0.02, 0.02, 0.2, False)]
)
def test_areas_of_boxes_and_masks_are_solved_from_the_metrics(true, extra, missed, able):
    models = pd.DataFrame([mask_metrics(true, extra, missed)])
    areas = findings_page.mask_areas(models).iloc[0]
    np.testing.assert_allclose(areas[["box", "mask"]].to_numpy(float), [true + missed, true + extra], rtol=1e-9)
    assert findings_page.testable(models) is able
    assert findings_page.mask_areas(models[["mask_agreement"]]).isna().all(axis=None)


def test_r_given_a_column_is_the_partial_correlation_and_vanishes_with_its_common_cause():
    rng = np.random.default_rng(0)
    size = np.repeat([25.0, 100.0], 40)
    models = pd.DataFrame({"images_per_class": size, "gap": -size / 100 + rng.normal(0, 0.2, 80), "cell": np.arange(80) // 2})
    models["iou"] = -size / 100 + rng.normal(0, 0.2, 80)
    sampling = Sampling(0.8, 200, 0)
    r, low, high = findings_page.held_fixed(models, "iou", ["images_per_class"], [], sampling)
    xy, xz, yz = (models[a].corr(models[b]) for a, b in (("iou", "gap"), ("iou", "images_per_class"), ("gap", "images_per_class")))
    assert xy > 0.6
    assert r == pytest.approx((xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2)), abs=1e-12)
    assert low < 0 < high
    assert findings_page.held_fixed(models, "iou", [], ["images_per_class"], sampling)[0] == pytest.approx(r, abs=1e-12)
    few = models[models["cell"] < 7]
    assert np.isnan(findings_page.held_fixed(few, "iou", [], [], sampling)[1:]).all()
    assert np.isnan(findings_page.held_fixed(models, "images_per_class", ["images_per_class"], [], sampling)[0])


def test_masks_that_cover_everything_test_no_claim(reports):
    folder = reports / "made_up/tables"
    scores = pd.read_parquet(folder / "scores.parquet").pivot(index="model_id", columns="measure", values="value").reset_index()
    scores.assign(**mask_metrics(0.5, 0.4, 0.02)).to_csv(folder / "mask_metrics.csv", index=False)
    (folder / "scores.parquet").unlink()  # as in a study without notebook 04
    assert run(reports, "--write") == 0
    text = (reports / "made_up/FINDINGS.md").read_text()
    assert "the study cannot test the claim" in text
    assert "masks cover 90.0 % of the pixels, the boxes 52.0 %" in text
    assert "Which measure is best?" not in text
    verdicts = {line.split("**")[1] for line in text.splitlines() if "](tables/" in line and line.startswith("|")}
    assert verdicts == {findings_page.NOT_TESTED}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name)
def test_a_committed_page_holds_what_its_tables_give(path):
    assert findings_page.main([path.parent.name]) == 0
