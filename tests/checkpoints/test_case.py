import numpy as np
import pandas as pd
import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from helpers.checkpoints import __main__ as command_line
from helpers.checkpoints import case, load
from helpers.checkpoints.images import Preparation, training_images
from helpers.files import PROJECT_ROOT
from tests.checkpoints.conftest import Residual, narrow
from tests.conftest import jpeg


@pytest.fixture(scope="module")
def fitted_by_heart(tmp_path_factory):
    """Weights of three networks fitted to the images of ``folders``."""
    place = tmp_path_factory.mktemp("fitted")
    for number, label in enumerate(("cat", "dog")):
        (place / "images" / label).mkdir(parents=True)
        for image in range(12):
            content = jpeg(100 * number + image, (16, 16), kind="PNG")
            (place / "images" / label / f"{image}.png").write_bytes(content)
    torch.manual_seed(0)
    train = training_images(place / "images", place / "zip").train
    return {name: fitted(train, (0, 1)) for name in ("a", "b", "c")}


@pytest.fixture
def checkpoints(fitted_by_heart, tmp_path, users_module):
    """Three networks fitted to images by heart, one of them twice, and files that are none."""
    place = tmp_path / "checkpoints"
    place.mkdir()
    for name, state in fitted_by_heart.items():
        save_file(state, place / f"{name}.safetensors")
    (place / "copy.safetensors").write_bytes((place / "a.safetensors").read_bytes())
    torch.save({"model": fitted_by_heart["a"]}, place / "wrapped.pt")
    (place / "text.pth").write_text("sixteen bytes ok")
    torch.save(Residual(3).state_dict(), place / "three.pt")
    return place


def fitted(train, order):
    """A network fitted by heart, whose output order[i] is for class i."""
    network = Residual(len(order))
    pixels = load.normaliser(Preparation().mean, Preparation().std)(train.images)
    labels = torch.tensor(order)[train.labels]
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(network(pixels), labels).backward()
        optimizer.step()
    return network.state_dict()


def command(checkpoints, images, reports, tmp_path, *further):
    known = [
        "--reports",
        str(reports),
        "--study",
        "a study",
        "--jobs",
        "1",
        "--out",
        str(tmp_path / "own"),
    ]
    return [
        str(checkpoints),
        str(images),
        "--architecture",
        "a_users_module:residual",
        *known,
        *map(str, further),
    ]


def test_a_folder_is_judged_the_answer_first_and_each_refusal_once(
    checkpoints, folders, reports, tmp_path, capsys
):
    assert (
        command_line.main(
            command(
                checkpoints,
                folders(),
                reports(),
                tmp_path,
                "--labelled",
                folders("new", seed=5),
            )
        )
        == 0
    )
    said = capsys.readouterr().out.splitlines()
    assert " counted on your labelled images, for " in said[0]
    assert (
        sum("text.pth is not read: it is not a checkpoint" in line for line in said)
        == 1
    )
    assert (
        sum(
            "three.pt is not read: the network has 3 outputs and the images 2 classes"
            in line
            for line in said
        )
        == 1
    )
    equal = "a.safetensors and copy.safetensors and wrapped.pt hold the same weights."
    assert equal in said
    table = pd.read_csv(tmp_path / "own/verdicts.csv").set_index("checkpoint")
    assert table.loc["a.safetensors", "accuracy"] == pytest.approx(
        table.loc["copy.safetensors", "accuracy"]
    )
    assert (tmp_path / "own/README.md").read_text().startswith(said[0])


def test_the_fit_is_that_of_the_network_on_the_images_and_is_kept(
    checkpoints, folders, reports, tmp_path, monkeypatch
):
    arguments = (
        case.Inputs(checkpoints, folders()),
        case.Place(reports(), tmp_path / "own", "a study", jobs=1),
        load.Reading("a_users_module:residual"),
    )
    found = case.of_files(*arguments)
    train = training_images(folders(), tmp_path / "zip", most=20).train
    with torch.inference_mode():
        network = load.load_checkpoint(
            checkpoints / "b.safetensors", "a_users_module:residual"
        ).network
        right = (
            network(
                load.normaliser(Preparation().mean, Preparation().std)(train.images)
            ).argmax(1)
            == train.labels
        )
    table = found.verdicts.set_index("checkpoint")
    assert table.loc["b.safetensors", "train_accuracy"] == pytest.approx(
        right.float().mean().item()
    )
    monkeypatch.setattr("helpers.measures.evidence.score", None)
    again = case.of_files(*arguments)
    pd.testing.assert_frame_equal(again.verdicts, found.verdicts)


def test_a_network_of_another_kind_is_not_judged_by_one_study_alone(
    folders, reports, tmp_path, users_module, capsys
):
    save_file(narrow(2).state_dict(), tmp_path / "a.safetensors")
    given = command(tmp_path / "a.safetensors", folders(), reports(), tmp_path)
    given[3] = "a_users_module:narrow"
    assert command_line.main(given) == 1
    assert "is not judged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *[({place: "none"}, "does not exist") for place in (0, 1)],
        ({3: "resnet19"}, "is unknown"),
        ({7: "no study"}, "studies that have: a study"),
    ],
)
def test_a_wrong_argument_is_one_sentence_and_2(
    checkpoints, folders, reports, tmp_path, capsys, change, said
):
    given = command(checkpoints, folders(), reports(), tmp_path)
    for place, value in change.items():
        given[place] = value
    assert command_line.main(given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_place_that_is_not_there_is_refused_before_anything_is_read(
    folders, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(case, "of_files", None)
    there = str(folders())
    for places, name in (
        (["none", there], "CHECKPOINTS"),
        ([there, "none"], "IMAGES"),
        ([there, there, "--labelled", "none"], "--labelled"),
    ):
        assert command_line.main([*places, "--out", str(tmp_path / "own")]) == 2
        assert f"{name} is none, which does not exist" in capsys.readouterr().err


@pytest.mark.nightly
def test_published_checkpoints_find_the_images_that_they_were_fitted_to(
    real_data, tmp_path
):
    folder, reports = PROJECT_ROOT / "reports/kinds20", PROJECT_ROOT / "reports"
    one = next((folder / "checkpoints").glob("*@stop.safetensors"))
    found = case.of_files(
        case.Inputs(one, real_data / "tiny-imagenet-compact-20.zip", most=200),
        case.Place(reports, tmp_path / "own", jobs=1),
    )
    read = "Read: 200 of the 4,500 images that the study kinds20 fitted all of these to"
    assert any(sentence.startswith(read) for sentence in found.sentences)
    assert np.isfinite(found.verdicts["accuracy"].item())


def test_torchvisions_and_timms_networks_are_built(tmp_path):
    for name, network in {
        "squeezenet1_1": torchvision.models.squeezenet1_1(num_classes=6),
        "timm:resnet10t": None,
    }.items():
        if network is None:
            network = pytest.importorskip("timm").create_model(
                "resnet10t", num_classes=6
            )
        torch.save(network.state_dict(), tmp_path / "a.pt")
        assert load.load_checkpoint(tmp_path / "a.pt", name).classes == 6


@pytest.mark.parametrize("beside", ["timm", "noted", "other"])
def test_outputs_in_another_order_are_noticed(
    folders, reports, tmp_path, users_module, capsys, beside
):
    """timm's and a noted order are taken; another one is a reason not to judge."""
    path = folders(classes=("Cat", "ant", "bee"), count=30)
    train = training_images(path, tmp_path / "zip").train
    order = {"timm": (2, 0, 1), "noted": (0, 2, 1), "other": (0, 2, 1)}[beside]
    torch.manual_seed(0)
    content = {"state_dict": fitted(train, order)}
    if beside == "noted":
        content["class_to_idx"] = {"Cat": 0, "bee": 1, "ant": 2}
    torch.save(content, tmp_path / "a.pt")
    status = command_line.main(command(tmp_path / "a.pt", path, reports(), tmp_path))
    text = capsys.readouterr().out
    row = pd.read_csv(tmp_path / "own/verdicts.csv").iloc[0]
    if beside == "other":
        assert status == 1
        assert "fit the labels in another order of the classes (Cat, bee, ant)" in text
        assert "give the order by --classes" in text
        names = tmp_path / "names.txt"
        names.write_text("Cat\nbee\nant\n")
        again = command(tmp_path / "a.pt", path, reports("again"), tmp_path)
        command_line.main([*again, "--classes", str(names)])
        assert "another order" not in capsys.readouterr().out
        row = pd.read_csv(tmp_path / "own/verdicts.csv").iloc[0]
    else:
        words = {"timm": "in timm's order (ant, bee, Cat)"}.get(
            beside, "in the order that its file notes: Cat, bee, ant"
        )
        assert words in text
    assert row["train_accuracy"] > 0.8


def test_a_file_that_cannot_be_read_costs_itself_alone(
    checkpoints, folders, reports, tmp_path, capsys
):
    (checkpoints / "loop.pt").symlink_to("loop.pt")
    assert command_line.main(command(checkpoints, folders(), reports(), tmp_path)) == 0
    text = capsys.readouterr().out
    assert "loop.pt is not read: it is a link to nothing" in text


def test_an_accuracy_that_the_file_notes_and_the_images_do_not_show_is_said(
    checkpoints, folders, reports, tmp_path, capsys
):
    state = load.load_checkpoint(
        checkpoints / "a.safetensors", "a_users_module:residual"
    ).network.state_dict()
    torch.save({"state_dict": state, "best_acc1": 99.0}, tmp_path / "noted.pt")
    options = ("--mean", 0.2, 0.2, 0.2, "--std", 0.9, 0.9, 0.9)
    command_line.main(
        command(tmp_path / "noted.pt", folders(), reports(), tmp_path, *options)
    )
    text = capsys.readouterr().out
    assert "its file notes an accuracy of 99 %, and only" in text
    assert "--resize and --crop" in text
