import numpy as np
import pytest
import torch

from helpers.data.images import load_study_data
from helpers.files import read_tensors
from helpers.kappa import making, networks
from helpers.kappa.making import Recipe, augmented, family_made, made_names, make_missing, train, untrained
from helpers.training.run import resident
from tests.conftest import TINY_SCENES

NAME = "resnet18 w0.0625"
OPTIONS = {"epochs": 2, "seed": 0, "precision": "float32", "jobs": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def single_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("resnet18 w0.25", "resnet"),
        ("resnet101 w1", "resnet"),
        ("efficientnet-like w0.5 d0.5", "efficientnet-like"),
        ("resnet18", ""),
        ("resnet19 w0.25", ""),
        ("efficientnet_b0", ""),
        ("efficientnet-like w0.5", ""),
        ("RN50 w0.5", ""),
        ("model set", ""),
    ],
)
def test_a_made_network_says_what_it_is_by_its_name(name, family):
    assert family_made(name) == family
    assert made_names(["RN50", name]) == ([name] if family else [])


@pytest.mark.parametrize("name", ["resnet18 w0.125", "efficientnet-like w0.25 d0.5"])
def test_the_start_is_decided_by_name_and_seed_and_grows_with_the_factors(name):
    state = torch.random.get_rng_state()
    one, two, other = (untrained(name, 4, 64, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, two[key]) for key, value in one.items())
    assert any(not torch.equal(value, other[key]) for key, value in one.items())
    wider = untrained(name.replace("w0.", "w1."), 4, 64, 1).state_dict()
    assert sum(value.numel() for value in wider.values()) > 10 * sum(value.numel() for value in one.values())


def test_small_images_keep_a_map():
    """Cells of the last map: 4 x 4 of 64 px for both families, where EfficientNet-B0 would leave 2 x 2."""
    images = torch.zeros(2, 3, 64, 64)
    with torch.inference_mode():
        assert untrained("efficientnet-like w0.25 d0.25", 3, 64, 0).eval().features(images).shape[2:] == (4, 4)
        assert untrained(NAME, 3, 64, 0).eval().conv1(images).shape[2:] == (32, 32)
        assert untrained(NAME, 3, 32, 0).eval().conv1(images[..., :32, :32]).shape[2:] == (32, 32)


def test_augmented_images_are_shifted_mirrored_copies_of_themselves():
    images = torch.arange(16 * 16).repeat(40, 3, 1, 1).reshape(40, 3, 16, 16).to(torch.uint8)
    found = augmented(images, torch.Generator().manual_seed(0))
    assert found.shape == images.shape and found.dtype == torch.uint8
    padded = np.pad(images[0, 0].numpy(), 2, mode="reflect")
    shifted = {
        flipped.tobytes(): mirrored
        for y in range(5)
        for x in range(5)
        for mirrored, flipped in enumerate((padded[y : y + 16, x : x + 16].copy(), padded[y : y + 16, x : x + 16][:, ::-1].copy()))
    }
    kinds = [shifted[image[0].numpy().tobytes()] for image in found]
    assert 8 < sum(kinds) < 32
    assert len({image[0].numpy().tobytes() for image in found}) > 20
    assert torch.equal(found, augmented(images, torch.Generator().manual_seed(0)))


def test_the_rate_rises_from_0_and_falls_to_0():
    rates = np.array([making._rate(share) for share in np.linspace(0, 1, 101)])
    assert rates[0] == 0 and rates[20] == rates.max() == making._RATE and rates[100] == pytest.approx(0, abs=1e-12)
    assert (np.diff(rates[:21]) > 0).all() and (np.diff(rates[20:]) < 0).all()


def test_networks_are_made_once_kept_with_their_head_and_loaded_with_their_start(data, tmp_path, monkeypatch):
    (row,) = make_missing(["RN50", NAME], data.train, data.test, tmp_path, **OPTIONS)
    assert (row["model"], row["classes"], row["epochs"], row["precision"]) == (NAME, 3, 2, "float32")
    assert 0 <= row["test_accuracy"] <= 1 and row["seconds"] > 0
    monkeypatch.setattr(making, "_epoch", lambda *given: pytest.fail("trained again"))
    assert list(make_missing([NAME], data.train, data.test, tmp_path, **OPTIONS)) == [row]
    (member,) = networks.made_members(networks.pd.DataFrame([row]), tmp_path, 16)
    assert (member.family, member.architecture, member.backbone.origin) == ("resnet", NAME, "made on 3 classes")
    kept = read_tensors(tmp_path / row["kept_as"] / making.WEIGHTS)
    assert torch.equal(member.backbone.network.state_dict()["conv1.weight"], kept["conv1.weight"])
    assert torch.equal(member.start.state_dict()["conv1.weight"], untrained(NAME, 3, 16, 0).state_dict()["conv1.weight"])
    assert not [path for path in tmp_path.rglob("*") if "checkpoint" in path.name or "partial" in path.name]


def test_a_killed_training_goes_on_to_the_same_weights(data, tmp_path, monkeypatch, single_thread):
    recipe, real, splits = Recipe(NAME, 3, 3, 0, "float32"), making._epoch, (resident(data.train, "cpu"), resident(data.test, "cpu"))
    train(recipe, *splits, tmp_path / "whole")
    asked = []

    def killed(model, optimizer, split, given, epoch):
        asked.append(epoch)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(model, optimizer, split, given, epoch)

    monkeypatch.setattr(making, "_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, *splits, tmp_path / "part")
    assert not (tmp_path / "part" / making.WEIGHTS).exists()
    train(recipe, *splits, tmp_path / "part")
    assert asked == [0, 1, 2, 2]
    whole, part = (read_tensors(tmp_path / name / making.WEIGHTS) for name in ("whole", "part"))
    assert all(torch.equal(value, part[name]) for name, value in whole.items())


def test_a_lost_or_altered_network_is_made_again(data, tmp_path):
    (row,) = make_missing([NAME], data.train, data.test, tmp_path, **OPTIONS)
    path = tmp_path / row["kept_as"] / making.WEIGHTS
    path.write_bytes(b"spoilt")
    with pytest.warns(UserWarning, match="not as it was written; it is made again"):
        (again,) = make_missing([NAME], data.train, data.test, tmp_path, **OPTIONS)
    assert again["train_loss"] == row["train_loss"]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_damaged_record_or_that_of_another_network_is_not_taken_for_this_one(data, tmp_path, sealed):
    """Unsealed, as records were written before, it is known by its recipe and its folder."""
    (row,) = make_missing([NAME], data.train, data.test, tmp_path, **OPTIONS | {"epochs": 1})
    (other,) = make_missing([NAME], data.train, data.test, tmp_path, **OPTIONS | {"epochs": 1, "seed": 1})
    record = tmp_path / row["kept_as"] / making._RECORD
    foreign = (tmp_path / other["kept_as"] / making._RECORD).read_bytes()
    for damaged in (foreign, b"[]", b"{}", foreign[:30]):
        if not sealed:
            record.with_name(f".{record.name}.seal").unlink()
        record.write_bytes(damaged)
        with pytest.warns(UserWarning, match=r"record\.json: .*; it is made again"):
            (again,) = make_missing([NAME], data.train, data.test, tmp_path, **OPTIONS | {"epochs": 1})
        assert list(again) == list(row)
        assert again | {"seconds": 0} == row | {"seconds": 0}


@pytest.mark.parametrize("change", [{"seed": 1}, {"epochs": 1}])
def test_another_recipe_is_another_network(data, tmp_path, change):
    (row,) = make_missing([NAME], data.train, data.test, tmp_path, **OPTIONS)
    (other,) = make_missing([NAME], data.train, data.test, tmp_path, **OPTIONS | change)
    assert other["kept_as"] != row["kept_as"]


def test_networks_made_side_by_side_are_those_made_alone(data, tmp_path):
    names = [NAME, "efficientnet-like w0.25 d0.25"]
    alone = list(make_missing(names, data.train, data.test, tmp_path / "a", **OPTIONS | {"epochs": 1}))
    beside = list(make_missing(names, data.train, data.test, tmp_path / "b", **OPTIONS | {"epochs": 1, "jobs": 2}))
    timeless = [[{**row, "seconds": 0} for row in rows] for rows in (alone, beside)]
    assert timeless[0] == timeless[1]
    for row in alone:
        pair = [read_tensors(tmp_path / place / row["kept_as"] / making.WEIGHTS) for place in "ab"]
        assert all(torch.equal(value, pair[1][key]) for key, value in pair[0].items())


def test_making_learns_what_it_is_shown(data, tmp_path):
    """Ten passes over 36 rendered shapes bring the training loss well below that of guessing, ln 3."""
    (row,) = make_missing(["resnet18 w0.125"], data.train, data.test, tmp_path, **OPTIONS | {"epochs": 40})
    assert row["train_loss"] < 0.75 * np.log(3)


def test_what_cannot_be_made_is_refused(data, tmp_path):
    with pytest.raises(ValueError, match="made_epochs is 0; training on the spot needs at least 1"):
        list(make_missing([NAME], data.train, data.test, tmp_path, **OPTIONS | {"epochs": 0}))
    with pytest.raises(ValueError, match=r"width 0\.01 must be at least 0\.0625"):
        list(make_missing(["resnet18 w0.01"], data.train, data.test, tmp_path, **OPTIONS))
