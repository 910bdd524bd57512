import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file

from helpers.files import PROJECT_ROOT
from helpers.select import cli
from helpers.select.scores import Pace, affordable, normaliser, plan

EVIL = "<img src=x onerror=alert(1)>`$|"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("own")
    (top / "ckpt" / EVIL).mkdir(parents=True)
    for seed in range(3):
        torch.manual_seed(seed)
        name = f"{EVIL}/run..{seed}.safetensors" if seed == 2 else f"run{seed}.safetensors"
        save_file(torchvision.models.resnet18(num_classes=2).state_dict(), top / "ckpt" / name)
    torch.save({"trainer": open}, top / "ckpt/code.pt")
    generator = np.random.default_rng(0)
    for name in ("<b>cat</b>".replace("/", "_"), "dog"):
        (top / "images" / name).mkdir(parents=True)
        for index in range(6):
            Image.fromarray(generator.integers(0, 255, (32, 40, 3), dtype=np.uint8)).save(top / "images" / name / f"{index}.jpg")
    return top


def test_checkpoints_and_images_give_a_ranking_cards_and_figures(folders, capsys):
    arguments = [str(folders / name) for name in ("ckpt", "images")] + [
        "--out",
        str(folders / "out"),
        "--images-used",
        "10",
        "--device",
        "cpu",
    ]
    assert cli.main([*arguments, "--study", "tiny20"]) == 0
    told = capsys.readouterr().out
    table = pd.read_csv(folders / "out/own_ranking.csv")
    assert len(table) == 4
    assert table["rank"].notna().sum() == 3
    assert table["probability_best"].sum() == pytest.approx(1)
    assert (table["gap_low"] <= table["gap_high"]).sum() == 3
    assert table.loc[table["checkpoint"] == "code.pt", "note"].item().startswith("not scored: code.pt was refused")
    scores = pd.read_csv(folders / "out/own_scores.csv", keep_default_na=False)
    assert scores["checkpoint"].nunique() == 3
    assert ((scores["value"] != "") | (scores["reason"] != "")).all()
    assert "differs from your case" in told
    assert {path.name for path in (folders / "out").iterdir()} >= {"README.md", "own_ranking.png", "own_among_the_study.png", "cards"}
    cards = list((folders / "out/cards").iterdir())
    assert len(cards) == 4
    for card in cards:
        assert "nan" not in card.read_text().replace("nan_", "")
    assert sorted(path.name for path in folders.iterdir()) == ["ckpt", "images", "out"]


def test_a_name_with_markup_is_literal_text_in_card_and_sentences(folders):
    for path in [*(folders / "out/cards").iterdir(), folders / "out/README.md"]:
        for line in path.read_text().splitlines():
            if "<img" in line:
                before = line[: line.index("<img")]
                assert before.count("`") % 2 == 1, line  # inside a code span


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "images"], "nowhere does not exist"),
        (["images", "images"], "no checkpoint is in"),
        (["ckpt", "ckpt"], "no image in"),
        (["ckpt", "images", "--architecture", "resnet19"], "'resnet19' is unknown"),
        (["ckpt", "images", "--std", "0", "1", "1"], "std above 0"),
        (["ckpt", "images", "--study", "absent"], "'absent' has no catalogue"),
    ],
)
def test_a_wrong_argument_is_one_clear_line(folders, capsys, arguments, message):
    places = [str(folders / word) if index < 2 else word for index, word in enumerate(arguments)]
    assert cli.main([*places, "--out", str(folders / "out2")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (folders / "out2").exists()


def test_help_is_fast_since_it_imports_no_torch():
    started = time.perf_counter()
    code = (
        "import sys; from helpers.select import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--architecture" in done.stdout
    assert time.perf_counter() - started < 10


def test_the_plan_keeps_to_the_time_and_drops_the_dear_measures_first():
    rich = plan(Pace(0.1, 0.001), 20, 5, 200)
    assert rich == (200, True)
    tight = plan(Pace(1, 0.1), 20, 5, 200)
    assert not tight.extra
    assert 20 * (1 + tight.images * 1.5 * 0.1) <= 300
    assert plan(Pace(100, 1), 20, 1, 200) == (16, False)
    assert plan(Pace(0, 0), 20, 1, 7) == (7, True)


def test_what_is_affordable_needs_no_start_and_no_search():
    names = {item.name for item in affordable()}
    assert {"iou", "nuclear_norm", "effective_invariance", "l2", "training_loss", "accuracy_under_augmentation"} <= names
    assert not {"spectral_norm", "pacbayes_orig", "gi_score", "l2_dist"} & names
    assert "effective_invariance" not in {item.name for item in affordable(extra=False)}


def test_normalisation_is_that_of_the_training():
    pixels = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 2, 2)
    found = normaliser([0.5, 0.4, 0.3], [0.5, 0.2, 0.1])(pixels)
    torch.testing.assert_close(found[:, :, 0, 0], torch.tensor([[-1.0, -2.0, -3.0], [1.0, 3.0, 7.0]]))
