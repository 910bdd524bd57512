import os
import shutil
import signal
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
from helpers.networks import resnet
from helpers.networks.hooks import features_and_logits, prepared
from helpers.select import cli
from helpers.select.images import load_images
from helpers.select.scores import Pace, affordable, normaliser, plan

EVIL = "<img src=x onerror=alert(1)>`$|"


ODD = os.fsdecode(b"odd\xff.pt")


def fitted(seed, images):
    """Give a random network whose last layer is fitted to a folder of images, by least squares."""
    torch.manual_seed(seed)
    network = torchvision.models.resnet18(num_classes=2).eval()
    pixels = prepared(images.images, resnet.normalise_images, "cpu")
    with torch.no_grad():
        features = features_and_logits(network, network.layer4, pixels)[0].mean((2, 3))
        wide = torch.cat([features, torch.ones(len(features), 1)], 1)
        weights = torch.linalg.pinv(wide) @ (10 * torch.nn.functional.one_hot(images.labels, 2) - 5).float()
        network.fc.weight.copy_(weights[:-1].T)
        network.fc.bias.copy_(weights[-1])
    return network.state_dict()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("own")
    (top / "ckpt" / EVIL).mkdir(parents=True)
    (top / "untrained").mkdir()
    generator = np.random.default_rng(0)
    for name in ("<b>cat</b>".replace("/", "_"), "dog"):
        (top / "images" / name).mkdir(parents=True)
        for index in range(6):
            Image.fromarray(generator.integers(0, 255, (32, 40, 3), dtype=np.uint8)).save(top / "images" / name / f"{index}.jpg")
    (top / "images/dog/broken.jpg").write_bytes(b"no image")
    images = load_images(top / "images", image_size=32)
    for seed in range(3):
        name = f"{EVIL}/run..{seed}.safetensors" if seed == 2 else f"run{seed}.safetensors"
        save_file(fitted(seed, images), top / "ckpt" / name)
        save_file(torchvision.models.resnet18(num_classes=2).state_dict(), top / "untrained" / f"{seed}.safetensors")
    save_file(torchvision.models.resnet18(num_classes=7).state_dict(), top / "ckpt/seven.safetensors")
    torch.save({"trainer": open}, top / "ckpt/code.pt")
    torch.save({}, top / "ckpt" / ODD)
    (top / "ckpt/notes.txt").write_text("no")
    return top


def test_checkpoints_and_images_give_a_ranking_cards_and_figures(folders, capsys):
    arguments = [str(folders / name) for name in ("ckpt", "images")] + [
        "--out",
        str(folders / "out"),
        "--images-used",
        "13",
        "--device",
        "cpu",
    ]
    assert cli.main([*arguments, "--study", "compact20"]) == 0
    told = capsys.readouterr().out
    table = pd.read_csv(folders / "out/own_ranking.csv")
    verdicts = table.set_index("checkpoint")["verdict"].to_dict()
    assert len(verdicts) == 7
    assert {verdicts[name] for name in ("run0.safetensors", "run1.safetensors", f"{EVIL}/run..2.safetensors")} <= {"ranked", "not judged"}
    assert verdicts.items() >= {"code.pt": "not scored", "seven.safetensors": "not scored", "notes.txt": "passed over"}.items()
    assert verdicts["odd\\udcff.pt"] == "not scored"
    notes = table.set_index("checkpoint")["note"]
    assert notes["code.pt"].startswith("not scored: code.pt was refused")
    assert "7 outputs and the images lie in 2 class folders" in notes["seven.safetensors"]
    assert notes["seven.safetensors"].count("--classes") == 1
    assert (table["train_accuracy"].dropna() == 1).sum() == 3
    assert told.index("Not scored") < told.index("12 images")
    assert pd.read_csv(folders / "out/own_faults.csv")["fault"].tolist() == ["unreadable_image"]
    assert "own_faults.csv" in told
    every = [name for name in verdicts if name.isascii() and name in told]
    assert len(every) == 7
    scores = pd.read_csv(folders / "out/own_scores.csv", keep_default_na=False)
    assert scores["checkpoint"].nunique() == 3
    assert ((scores["value"] != "") | (scores["reason"] != "")).all()
    assert "differs from your case" in told
    assert {path.name for path in (folders / "out").iterdir()} >= {"README.md", "own_ranking.png", "own_among_the_study.png", "cards"}
    cards = list((folders / "out/cards").iterdir())
    assert len(cards) == 6
    for card in cards:
        assert "nan" not in card.read_text().replace("nan_", "")
    assert sorted(path.name for path in folders.iterdir()) == ["ckpt", "images", "out", "untrained"]


def test_untrained_networks_are_not_judged_and_that_comes_first(folders, capsys):
    places = [str(folders / name) for name in ("untrained", "images")]
    assert cli.main([*places, "--out", str(folders / "out3"), "--images-used", "8", "--study", "compact20"]) == 1
    table = pd.read_csv(folders / "out3/own_ranking.csv")
    assert table["verdict"].tolist() == ["not judged"] * 3
    assert table[["rank", "predicted_gap", "probability_best"]].isna().all(axis=None)
    told = capsys.readouterr().out
    assert "is that of chance" in told
    assert "First of" not in told
    assert (folders / "out3/README.md").read_text().splitlines()[2].startswith("**Judged: none of 3 checkpoints**")


@pytest.fixture(scope="module")
def beside(folders):
    """A study with targets, images without labels, and held-out images with labels, under the folders."""
    random, names = np.random.default_rng(1), [f"m{number}" for number in range(16)]
    tables = folders / "reports/made/tables"
    tables.mkdir(parents=True)
    facts = {"model_id": names, "cell": [f"c{number // 2}" for number in range(16)], "architecture": "resnet18"}
    table = pd.DataFrame(facts | {"gap": random.uniform(0.1, 0.4, 16), "train_accuracy": 0.95, "left_out": ""})
    table.to_csv(tables / "catalogue.csv", index=False)
    iou = {"model_id": names, "measure": "iou", "variant": "", "value": np.linspace(0, 1, 16)}
    pd.DataFrame(iou).to_parquet(tables / "scores.parquet", index=False)
    rows = [table[["model_id", "cell", "architecture"]].assign(target=name) for name in ("test images", "blur_0.7")]
    met = pd.concat(rows).assign(test_accuracy=random.uniform(0.2, 0.9, 32))
    shutil.copytree(tables, folders / "reports/without_targets/tables")
    met.assign(average_confidence=0.3 + 0.7 * met["test_accuracy"]).to_csv(tables / "target_scores.csv", index=False)
    for place, count in (("target", 12), ("held/<b>cat<_b>", 6), ("held/dog", 6), ("few/dog", 3), ("other/cow", 12), ("empty", 0)):
        (folders / "met" / place).mkdir(parents=True)
        for index in range(count):
            pixels = random.integers(0, 255, (32, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folders / "met" / place / f"{index}.png")
    return folders


def test_a_target_and_labelled_images_give_accuracies_there_and_a_level(beside, capsys):
    places = [str(beside / name) for name in ("ckpt", "images")] + ["--out", str(beside / "met/out"), "--reports", str(beside / "reports")]
    met = ["--target", str(beside / "met/target"), "--labelled", str(beside / "met/held")]
    assert cli.main([*places, *met, "--images-used", "12", "--image-size", "32"]) == 0
    told = capsys.readouterr().out
    there, table = (pd.read_csv(beside / "met/out" / f"{name}.csv") for name in ("own_target", "own_ranking"))
    assert len(there) == 3
    assert there["method"].eq("average_confidence").all()
    assert there[["predicted_accuracy", "accuracy_low", "accuracy_high"]].notna().all(axis=None)
    assert there["note"].str.contains("moved together").all()
    ranked = table[table["verdict"] == "ranked"]
    assert len(ranked) == 3
    assert ranked["predicted_gap"].notna().all()
    assert ranked["note"].str.contains("another case than the study's \\(boxes\\)").all()
    assert told.count("labelled images move every predicted accuracy") == 2
    assert "on the target" in told
    assert (beside / "met/out/own_target.png").stat().st_size > 1000
    assert "predicted accuracy on the target" in next((beside / "met/out/cards").glob("run0*")).read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "met/empty"], "--target {}/met/empty is empty; give a folder of images"),
        (["--target", "met/none"], "--target {}/met/none does not exist"),
        (["--target", "ckpt"], "no image in"),
        (["--target", "images"], "the target images {}/images are the training images"),
        (["--labelled", "images"], "the labelled images {}/images are the training images"),
        (["--labelled", "met/few"], "3 labelled images are in {}/met/few; at least 10 are needed"),
        (["--labelled", "met/other"], "labels of {}/met/other are none of the classes: cow"),
        (["--labelled", "met/target"], "lie in no folders of classes"),
        (["--target", "met/target", "--study", "without_targets"], "'without_targets' has no target_scores.csv"),
    ],
)
def test_images_that_cannot_be_met_are_refused_before_any_scoring(beside, capsys, arguments, message):
    option, place, *rest = arguments
    places = [str(beside / name) for name in ("ckpt", "images")] + ["--out", str(beside / "out4"), "--reports", str(beside / "reports")]
    assert cli.main([*places, option, str(beside / place), *rest]) == 2
    told = capsys.readouterr()
    assert message.format(beside) in told.err
    assert len(told.err.splitlines()) == 1
    assert told.out == ""


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
        (["ckpt", "images", "--mean", "123", "116", "103"], "of channels in [0, 1]"),
        (["ckpt", "images", "--study", "absent"], "'absent' has no catalogue"),
        (["ckpt", "nowhere.zip"], "nowhere.zip does not exist"),
        (["ckpt", "ckpt/code.pt"], "is a file; give a folder or a .zip"),
        (["ckpt", "images", "--boxes", "no.csv", "--classes", "no.txt"], "--boxes no.csv does not exist; --classes no.txt does not exist"),
        (["ckpt", "images", "--level", "2"], "--level 2.0 must be between 0 and 1"),
        (["ckpt", "images", "--level", "nan"], "--level nan must be between 0 and 1"),
        (["ckpt", "images", "--device", "nonsense"], "--device nonsense is unknown"),
        (["ckpt", "images", "--device", "cuda:99"], "cuda:99"),
        (["ckpt", "images", "--image-size", "100000"], "--image-size 100000 must be from 8 to 1024"),
        (["ckpt", "images", "--minutes", "nan"], "--minutes nan above 0"),
        (["ckpt", "images", "--seed", "-1"], "--seed -1 must be"),
    ],
)
def test_a_wrong_argument_is_one_clear_line(folders, capsys, arguments, message):
    places = [str(folders / word) if index < 2 else word for index, word in enumerate(arguments)]
    assert cli.main([*places, "--out", str(folders / "out2")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (folders / "out2").exists()


def test_a_list_of_classes_is_text_in_a_file(folders, tmp_path, capsys):
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\0")
    os.mkfifo(tmp_path / "queue")
    for name, message in (("binary.txt", "is no text in UTF-8 (byte 0); save it as UTF-8"), ("queue", "is no file and no folder")):
        assert cli.main([str(folders / "ckpt"), str(folders / "images"), "--classes", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err


def test_results_that_cannot_be_written_are_told_before_the_work(folders, capsys):
    assert cli.main([str(folders / "ckpt"), str(folders / "images"), "--images-used", "8", "--out", "/proc/own"]) == 2
    told = capsys.readouterr()
    assert "/proc/own" in told.err
    assert told.out == ""


def test_a_file_is_no_folder_for_results(folders, capsys):
    out = folders / "images/dog/broken.jpg/results"
    assert cli.main([str(folders / "ckpt"), str(folders / "images"), "--out", str(out)]) == 2
    assert "broken.jpg is a file; give a folder" in capsys.readouterr().err


def test_a_wrong_path_is_told_before_torch_is_imported():
    code = "import sys; from helpers.select import cli\nassert cli.main(['/no', '/where', '--level', '2']) == 2\n"
    code += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "checkpoints /no does not exist; images /where does not exist; --level 2.0 must be" in done.stderr


def test_an_interrupt_within_an_import_is_one_line(folders):
    command = [sys.executable, "-X", "importtime", "-m", "helpers.select", str(folders / "ckpt"), str(folders / "images")]
    with subprocess.Popen(command, cwd=PROJECT_ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        for line in process.stderr:
            if " torch." in line:  # a part of torch has just been imported
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert [line for line in rest.splitlines() if not line.startswith("import time:")][-1].endswith("interrupted; nothing was ranked")
    assert "Traceback" not in rest


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
    assert plan(Pace(0, 0.001), 20, 5, 3000) == (3000, True)
    assert plan(Pace(0, 0.001), 20, 5, 3000, beside=4500) == (2333, True)


def test_what_is_affordable_needs_no_start_and_no_search():
    names = {item.name for item in affordable()}
    assert {"iou", "nuclear_norm", "effective_invariance", "l2", "training_loss", "accuracy_under_augmentation"} <= names
    assert not {"spectral_norm", "pacbayes_orig", "gi_score", "l2_dist", "average_confidence", "target_effective_invariance"} & names
    assert "effective_invariance" not in {item.name for item in affordable(extra=False)}


def test_normalisation_is_that_of_the_training():
    pixels = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 2, 2)
    found = normaliser([0.5, 0.4, 0.3], [0.5, 0.2, 0.1])(pixels)
    torch.testing.assert_close(found[:, :, 0, 0], torch.tensor([[-1.0, -2.0, -3.0], [1.0, 3.0, 7.0]]))
