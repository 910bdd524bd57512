from dataclasses import replace

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from helpers.data import synthetic
from helpers.data.shifts import ssim
from helpers.kappa import noise
from helpers.kappa.noise import AutoEncoder, calibrated, degrade, train_autoencoder


@pytest.fixture(scope="module")
def images():
    """Rendered scenes of 32 pixels; 20 is no multiple of the chunk, so that a last short chunk is there."""
    pixels = synthetic.scenes("test", 4, 32, 0)["pixels"]
    return torch.from_numpy(np.stack(pixels))[:20]


@pytest.fixture(scope="module")
def autoencoder():
    pixels = synthetic.scenes("train", 40, 32, 0)["pixels"]
    return train_autoencoder(torch.from_numpy(np.stack(pixels)), seed=0)


def mean_ssim(images, generator, strength):
    return float(ssim(images, degrade(images, generator, strength)).double().mean())


def test_the_autoencoder_blends_and_loses_everything_at_its_end(images, autoencoder):
    whole, half = (degrade(images, autoencoder, strength) for strength in (1.0, 0.5))
    blend = (images.double() + whole) / 2
    assert (half - blend).abs().max() <= 0.76  # two roundings, one of them halved
    nothing = degrade(images, autoencoder, 1.0 + noise._WIDTH)
    assert torch.equal(nothing, nothing[:1].expand_as(nothing))


def test_its_channels_count_by_their_number():
    torch.manual_seed(0)
    network, pixels = AutoEncoder(), torch.rand(2, 3, 8, 8)
    code = network.encoder(pixels)
    for kept, first in ((8.0, [1] * 8), (1.25, [1, 0.25]), (0.0, [])):
        scale = torch.zeros(8)
        scale[: len(first)] = torch.tensor(first)
        wide = network.widen(code * scale[:, None, None])
        coloured = network.colour(torch.pixel_shuffle(wide, 2))
        expected = torch.sigmoid(torch.pixel_shuffle(coloured, 2))
        torch.testing.assert_close(network(pixels, torch.full((2,), kept)), expected)


def test_training_repeats_with_any_threads_and_global_generator(images):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    states = []
    for threads, seed in ((1, 1), (2, 1), (1, 2)):
        with threadpool_limits(threads):
            states.append(train_autoencoder(images, seed=seed).state_dict())
            assert torch.get_num_threads() == threads
    assert torch.equal(torch.rand(1), expected)
    one, two, other = states
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert not torch.equal(one["encoder.0.weight"], other["encoder.0.weight"])


def test_levels_hit_their_targets_in_few_steps(images, autoencoder, monkeypatch):
    computed = []
    monkeypatch.setattr(noise, "ssim", lambda *pair: computed.append(1) or ssim(*pair))
    targets = [0.6, 0.7, 0.8, 0.9, 1.0]
    levels = calibrated(autoencoder, images, targets)
    assert [level.ssim for level in levels] == targets
    for level in levels:
        assert abs(level.ssim_reached - level.ssim) <= 0.01
        again = mean_ssim(images, autoencoder, level.strength)
        assert again == level.ssim_reached
    assert levels[-1].strength == 0
    assert len(computed) <= 6 * len(targets) + 2, "the ends are computed once"


def test_a_target_out_of_reach_is_named_with_what_was_reached(images, autoencoder):
    least = mean_ssim(images, autoencoder, 1.0 + noise._WIDTH)
    message = f"noise_ssim has 0.01, and the auto-encoder reaches {least:.4f}"
    with pytest.raises(ValueError, match=message):
        calibrated(autoencoder, images, [0.9, 0.01])


def test_the_auto_encoder_is_trained_once(data, tmp_path, monkeypatch):
    made = noise.degradation([0.9, 1.0], data, tmp_path)
    monkeypatch.delattr(noise, "train_autoencoder")
    again = noise.degradation([0.9, 1.0], data, tmp_path)
    assert again.levels == made.levels
    with pytest.raises(NameError):  # other images have another one
        noise.degradation([1.0], replace(data, train=data.test), tmp_path)
