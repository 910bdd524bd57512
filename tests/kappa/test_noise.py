import re

import numpy as np
import pytest
import scipy.ndimage
import torch

from helpers.data import synthetic
from helpers.data.images import load_study_data
from helpers.data.shifts import ssim
from helpers.kappa import noise
from helpers.kappa.noise import (
    AutoEncoder,
    Generator,
    calibrate,
    degrade,
    greatest_strength,
    train_autoencoder,
)
from helpers.training.pool import torch_threads
from tests.conftest import TINY_SCENES

BLUR = Generator("blur")


@pytest.fixture(scope="module")
def images():
    """Rendered scenes of 32 pixels; 20 is no multiple of the chunk, so that a last short chunk is there."""
    pixels, _, _ = synthetic.scenes(len(synthetic.CLASS_NAMES), 4, 32, 0, "test")
    return torch.from_numpy(pixels)[:20]


@pytest.fixture(scope="module")
def autoencoder():
    pixels, _, _ = synthetic.scenes(len(synthetic.CLASS_NAMES), 40, 32, 0, "train")
    return Generator(
        "autoencoder",
        0,
        train_autoencoder(torch.from_numpy(pixels), width=4, epochs=4, seed=0),
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache"))


def mean_ssim(images, generator, strength):
    return float(ssim(images, degrade(images, generator, strength)).double().mean())


@pytest.mark.parametrize("strength", [0.4, 1.3, 6.0])
def test_blur_is_scipys(images, strength):
    found = degrade(images[:2], BLUR, strength).numpy().astype(float)
    radius = min(int(np.ceil(4 * strength)), 31)
    expected = scipy.ndimage.gaussian_filter(
        images[:2].numpy().astype(float),
        (0, 0, strength, strength),
        mode="mirror",
        radius=radius,
    )
    assert np.abs(found - expected).max() <= 0.51  # rounded to whole grey levels


def test_the_autoencoder_blends_up_to_1_and_loses_everything_at_its_end(
    images, autoencoder
):
    whole, half = (
        degrade(images, autoencoder, strength).double() for strength in (1.0, 0.5)
    )
    assert (
        half - (images.double() + whole) / 2
    ).abs().max() <= 0.76  # two roundings, one of them halved
    nothing = degrade(images, autoencoder, greatest_strength(autoencoder, 32))
    assert torch.equal(nothing, nothing[:1].expand_as(nothing))


def test_its_channels_count_by_their_number():
    torch.manual_seed(0)
    network, pixels = AutoEncoder(3), torch.rand(2, 3, 8, 8)
    code = network.encoder(pixels)
    for kept, scale in ((3.0, [1, 1, 1]), (1.25, [1, 0.25, 0]), (0.0, [0, 0, 0])):
        wide = network.widen(
            code * torch.tensor(scale, dtype=torch.float32)[:, None, None]
        )
        expected = torch.sigmoid(
            torch.pixel_shuffle(network.colour(torch.pixel_shuffle(wide, 2)), 2)
        )
        torch.testing.assert_close(network(pixels, torch.full((2,), kept)), expected)


def test_training_repeats_and_leaves_the_global_generator_alone(images):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two, other = (
        train_autoencoder(images, width=2, epochs=1, seed=seed).state_dict()
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert not torch.equal(one["encoder.0.weight"], other["encoder.0.weight"])


def test_half_of_a_batch_has_the_first_channels_alone(images, monkeypatch):
    channels, forward = [], AutoEncoder.forward
    monkeypatch.setattr(
        AutoEncoder,
        "forward",
        lambda self, pixels, kept: channels.append(kept) or forward(self, pixels, kept),
    )
    train_autoencoder(images, width=2, epochs=30, seed=1)
    assert all((kept[::2] == 2).all() for kept in channels)
    part = torch.cat([kept[1::2] for kept in channels])
    assert 0 <= part.min() < 0.1
    assert 1.9 < part.max() <= 2


def test_the_autoencoder_does_not_depend_on_the_number_of_threads(images):
    weights = []
    for number in (1, 2):
        with torch_threads(number):
            trained = train_autoencoder(images, width=2, epochs=2, seed=1)
            assert torch.get_num_threads() == number
        weights.append(trained.state_dict())
    one, two = weights
    assert all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.parametrize("name", ["blur", "autoencoder"])
def test_levels_calibrated_one_after_the_other_hit_their_targets_and_use_what_was_tried(
    images, autoencoder, monkeypatch, name
):
    generator = autoencoder if name == "autoencoder" else Generator(name)
    computed = []
    monkeypatch.setattr(noise, "ssim", lambda *pair: computed.append(1) or ssim(*pair))
    targets, tried = [0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95], {}
    for target in targets:
        found = calibrate(generator, images, target, tried)
        assert abs(found.ssim_reached - target) <= 0.01
        assert found.ssim == target
        assert (
            tried[found.strength]
            == found.ssim_reached
            == mean_ssim(images, generator, found.strength)
        )
    assert len(computed) == len(tried) - 1 <= 5 * len(targets)
    assert calibrate(generator, images, 1.0, tried) == (1.0, 1.0, 0.0)


def test_a_target_out_of_reach_names_it_what_was_reached_and_the_generator(
    images, autoencoder
):
    least = mean_ssim(images, autoencoder, 5.0)
    message = f"a mean SSIM of 0.02 cannot be reached by 'autoencoder': the nearest is {least:.4f}, at strength 5; change noise_ssim"
    with pytest.raises(ValueError, match=re.escape(message)):
        calibrate(autoencoder, images, 0.02, {})


def test_levels_and_the_auto_encoder_are_kept(data, tmp_path, monkeypatch):
    made = noise.generator("autoencoder", data, tmp_path, 0)
    first = noise.levels(made, [0.9, 1.0], data, tmp_path)
    assert mean_ssim(data.test.images, made, first[0].strength) == pytest.approx(
        first[0].ssim_reached
    )
    monkeypatch.setattr(
        noise,
        "train_autoencoder",
        lambda *arguments, **options: pytest.fail("trained again"),
    )
    monkeypatch.setattr(noise, "ssim", lambda *pair: pytest.fail("computed again"))
    again = noise.generator("autoencoder", data, tmp_path, 0)
    for name, value in made.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name])
    assert noise.levels(again, [1.0, 0.9], data, tmp_path) == first[::-1]


def test_a_target_out_of_reach_keeps_what_was_tried(data, tmp_path, monkeypatch):
    blur = Generator("blur")
    with pytest.raises(ValueError, match="cannot be reached"):
        noise.levels(blur, [0.9, 0.0], data, tmp_path)
    monkeypatch.setattr(noise, "ssim", lambda *pair: pytest.fail("computed again"))
    (level,) = noise.levels(blur, [0.9], data, tmp_path)
    assert level.ssim_reached == pytest.approx(0.9, abs=0.01)
