import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
import torch

from helpers.data.images import load_study_data
from helpers.kappa import backbones, probe, probing, statistics, tradeoff
from helpers.kappa import noise as kappa_noise
from helpers.kappa.networks import MODEL_SET, Member
from helpers.kappa.noise import calibrate, degrade
from helpers.kappa.probing import (
    at_few_levels,
    averaged,
    by_family,
    cells,
    check_classes,
    kept_features,
    noise_levels,
    of_classes,
)
from helpers.networks import resnet
from tests.conftest import TINY_SCENES
from tests.kappa.conftest import grid

TARGETS = [0.7, 1.0]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def noise(data, tmp_path_factory):
    return noise_levels("blur", TARGETS, data, tmp_path_factory.mktemp("noise"), seed=0, device="cpu")


@pytest.fixture(scope="module")
def member():
    network = resnet.build("resnet18", 3, stem="strided", width=0.125, seed=0)
    return Member(backbones.own_backbone("resnet18 no. 1", network, origin="random"), "resnet", "resnet18", "a@stop")


@pytest.fixture(scope="module")
def probed(member, data, noise, tmp_path_factory):
    steps = probe.class_steps(data.classes["class_id"].tolist(), 2, [0.0, 1 / 3])
    return probing.probe_member(member, data, noise, steps, 2, tmp_path_factory.mktemp("features"), l2=0.01, device="cpu")


def test_every_level_hits_its_target_on_the_test_images(data, noise):
    for level, target in zip(noise.levels, TARGETS, strict=True):
        degraded = degrade(data.test.images, noise.generator, level.strength, noise.seed)
        mean = float(kappa_noise.ssim(data.test.images, degraded).mean())
        assert mean == pytest.approx(level.reached, abs=1e-3)
        assert abs(level.reached - target) <= 0.01


def test_levels_are_read_when_they_are_there_and_only_new_ones_are_calibrated(data, tmp_path, monkeypatch):
    first = noise_levels("gaussian", [0.9], data, tmp_path, seed=0, device="cpu")
    asked = []
    real = calibrate
    monkeypatch.setattr(
        probing, "calibrate", lambda generator, images, target, *rest: asked.append(target) or real(generator, images, target, *rest)
    )
    second = noise_levels("gaussian", [0.9, 0.8], data, tmp_path, seed=0, device="cpu")
    assert asked == [0.8]
    assert second.levels[0] == first.levels[0]
    assert noise_levels("gaussian", [0.9], data, tmp_path, seed=1, device="cpu").identity != first.identity
    assert not list(tmp_path.glob("*.partial*"))


def test_the_auto_encoder_is_trained_once(data, tmp_path, monkeypatch):
    made = noise_levels("autoencoder", [1.0], data, tmp_path, seed=0, device="cpu")
    monkeypatch.setattr(probing, "train_autoencoder", lambda *arguments, **options: pytest.fail("trained again"))
    found = noise_levels("autoencoder", [1.0], data, tmp_path, seed=0, device="cpu")
    for name, value in made.generator.network.state_dict().items():
        assert torch.equal(value, found.generator.network.state_dict()[name])


@pytest.mark.parametrize(
    ("name", "targets", "message"),
    [
        ("blur", [], r"noise_ssim is \[\]; it needs at least one level"),
        ("blur", [0.9, 0.9], "each once"),
        ("snow", [0.9], "noise generator 'snow' is unknown"),
        ("blur", [0.05], "0.05 within 0.01 cannot be reached by 'blur': the nearest is"),
    ],
)
def test_levels_that_cannot_be_had_are_refused(name, targets, message, data, tmp_path):
    with pytest.raises(ValueError, match=message):
        noise_levels(name, targets, data, tmp_path, seed=0, device="cpu")


def test_features_are_computed_once_per_network_and_level(member, data, noise, tmp_path, monkeypatch):
    clean = kept_features(member.backbone, data.test, 0.0, noise, tmp_path, "cpu")
    noisy = kept_features(member.backbone, data.test, noise.levels[0].strength, noise, tmp_path, "cpu")
    torch.testing.assert_close(clean, backbones.backbone_features(member.backbone, data.test.images, "cpu", 64), rtol=0, atol=0)
    assert (clean - noisy).abs().max() > 1e-3
    monkeypatch.setattr(backbones, "backbone_features", lambda *arguments: pytest.fail("computed again"))
    assert torch.equal(kept_features(member.backbone, data.test, 0.0, noise, tmp_path, "cpu"), clean)
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 2
    assert not list(tmp_path.rglob("*.partial*"))


def test_an_interrupted_computation_leaves_nothing(member, data, noise, tmp_path, monkeypatch):
    def fail(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(backbones, "backbone_features", fail)
    with pytest.raises(KeyboardInterrupt):
        kept_features(member.backbone, data.test, 0.0, noise, tmp_path, "cpu")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_probes_are_fitted_to_clean_images_of_their_step_and_tested_at_every_level(probed, member, data, noise):
    table = probed.classes
    assert len(table) == 2 * (2 + 3)
    clean = backbones.backbone_features(member.backbone, data.train.images, "cpu", 64).numpy()
    strength = noise.levels[0].strength
    degraded = degrade(data.test.images, noise.generator, strength, noise.seed)
    noisy = backbones.backbone_features(member.backbone, degraded, "cpu", 64).numpy()
    for count, fraction in ((2, 0.0), (3, 1 / 3)):
        train, test = data.train.labels.numpy() < count, data.test.labels.numpy() < count
        fitted = probe.fit_probe(clean[train], data.train.labels[train])
        true, predicted = data.test.labels.numpy()[test], fitted.predict(noisy[test])
        rows = table[(table["ssim"] == 0.7) & np.isclose(table["unseen_fraction"], fraction)]
        assert rows["class_id"].tolist() == TINY_SCENES["class_ids"][:count]
        for row in rows.itertuples():
            assert row.error == pytest.approx((predicted[true == row.class_index] != row.class_index).mean())
            assert row.kappa == pytest.approx(sklearn.metrics.cohen_kappa_score(true == row.class_index, predicted == row.class_index))
            found = probed.predicted[(2, 3).index(count), noise.levels.index(noise.levels[0])]
            np.testing.assert_array_equal(found[test], predicted)
            assert (found[~test] == -1).all()
    assert set(table["weights"]) == {round(member.backbone.millions * 1e6)}
    assert probed.first.classes_.tolist() == [0, 1]


def test_images_are_taken_by_class(data):
    two = of_classes(data.train, 2)
    assert (len(two), two.labels.unique().tolist()) == (24, [0, 1])
    few = of_classes(data.train, 2, 7, seed=3)
    assert len(few) == 7
    assert set(few.names) < set(two.names)
    assert of_classes(data.train, 2, 7, seed=3).names == few.names != of_classes(data.train, 2, 7, seed=4).names


def test_a_class_without_images_is_named(data):
    check_classes(data, TINY_SCENES["class_ids"])
    with pytest.raises(ValueError, match="1 classes have no usable images: n0; check unseen_class_ids"):
        check_classes(data, ["synthetic_disc", "n0"])


def test_a_cell_sums_its_classes_up_and_is_compared_with_the_clean_one():
    classes = grid()
    table = cells(classes)
    assert len(table) == 8
    for row in table.itertuples():
        own = classes[(classes["model"] == row.model) & (classes["ssim"] == row.ssim) & (classes["unseen_fraction"] == row.unseen_fraction)]
        clean = classes[(classes["model"] == row.model) & (classes["ssim"] == 1) & (classes["unseen_fraction"] == 0)]
        assert row.error_mean == pytest.approx(own["error"].mean())
        assert row.kappa_loss_std == pytest.approx(own["kappa_loss"].std(ddof=1))
        assert row.divergence == pytest.approx(statistics.kappa_error_divergence(own, clean))
    assert table.loc[(table["ssim"] == 1) & (table["unseen_fraction"] == 0), "divergence"].eq(0).all()


def test_a_class_without_test_images_is_dropped_and_counted():
    classes = grid()
    classes.loc[classes["class_index"] == 3, ["error", "kappa", "kappa_loss"]] = np.nan
    table = cells(classes)
    assert set(zip(table["classes"], table["dropped"], strict=True)) == {(3, 1)}
    assert table["error_mean"].notna().all()


def test_models_of_one_architecture_are_averaged_and_then_have_a_surface():
    classes = grid((("a", MODEL_SET, 5.0), ("b", MODEL_SET, 5.0), ("c", MODEL_SET, 9.0)))
    classes["architecture"] = classes["model"].map({"a": "resnet18", "b": "resnet18", "c": "resnet34"})
    classes.loc[classes["model"] == "b", "error"] += 0.1
    table = cells(classes)
    with pytest.raises(ValueError, match="2 cells lie at"):
        tradeoff.fit_surface(table)
    means = averaged(table)
    assert means.groupby("model")["models"].first().to_dict() == {"resnet18": 2, "resnet34": 1}
    wanted = table[table["architecture"] == "resnet18"].groupby(["ssim", "unseen_fraction"])["error_mean"].mean()
    found = means[means["model"] == "resnet18"].set_index(["ssim", "unseen_fraction"])["error_mean"]
    pd.testing.assert_series_equal(found.sort_index(), wanted, check_names=False)
    assert tradeoff.fit_surface(means).levels[2].tolist() == [5e6, 9e6]


def test_an_average_over_an_undefined_cell_is_undefined():
    classes = grid((("a", MODEL_SET, 5.0), ("b", MODEL_SET, 5.0))).assign(architecture="resnet18")
    classes.loc[classes["model"] == "b", ["error", "kappa_loss"]] = np.nan
    assert averaged(cells(classes))["error_mean"].isna().all()


def test_families_stand_alone_in_their_order():
    parts = by_family(cells(grid((("a", "clip", 5.0), ("b", "resnet", 6.0), ("c", MODEL_SET, 7.0), ("d", "clip", 8.0)))))
    assert {name: part["model"].unique().tolist() for name, part in parts.items()} == {
        "clip": ["a", "d"],
        "resnet": ["b"],
        MODEL_SET: ["c"],
    }
    assert list(parts) == ["clip", "resnet", MODEL_SET]


def test_a_figure_of_every_class_shows_three_levels_of_the_largest_step():
    shown = at_few_levels(grid(ssim=(0.6, 0.7, 0.8, 0.9, 1.0)))
    assert sorted(shown["ssim"].unique()) == [0.6, 0.8, 1.0]
    assert set(shown["unseen_fraction"]) == {0.5}
    assert sorted(at_few_levels(grid(ssim=(1.0,)))["ssim"].unique()) == [1.0]
