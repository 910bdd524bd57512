import re

import numpy as np
import pytest
import scipy.ndimage
import torch
from torch import nn

from helpers.data import synthetic
from helpers.kappa import noise
from helpers.kappa.noise import AutoEncoder, calibrate, degrade, greatest_strength, noise_generator, ssim, train_autoencoder

BLUR, GAUSSIAN = noise_generator("blur"), noise_generator("gaussian")


@pytest.fixture(scope="module")
def images():
    """Rendered scenes of 32 pixels; 20 is no multiple of the chunk, so that a last short chunk is there."""
    pixels, _, _ = synthetic.scenes(len(synthetic.CLASS_NAMES), 4, 32, 0, "test")
    return torch.from_numpy(pixels)[:20]


@pytest.fixture(scope="module")
def trained():
    pixels, _, _ = synthetic.scenes(len(synthetic.CLASS_NAMES), 40, 32, 0, "train")
    pixels = torch.from_numpy(pixels)
    return pixels, train_autoencoder(pixels, width=4, epochs=4, seed=0)


@pytest.fixture(scope="module")
def autoencoder(trained):
    return noise_generator("autoencoder", trained[1])


def mean_ssim(images, generator, strength, seed=0):
    return float(ssim(images, degrade(images, generator, strength, seed)).double().mean())


def test_ssim_of_equal_images_is_1_of_constant_images_follows_by_hand_and_it_is_symmetric(images):
    assert float(ssim(images, images).min()) == pytest.approx(1, abs=1e-3)  # the squares of float32, see the first test
    black, grey = torch.zeros(1, 3, 11, 11, dtype=torch.uint8), torch.full((1, 3, 11, 11), 100, dtype=torch.uint8)
    c1 = (0.01 * 255) ** 2
    assert float(ssim(black, grey)) == pytest.approx(c1 / (100**2 + c1), rel=1e-3)
    other = degrade(images, BLUR, 1.0)
    torch.testing.assert_close(ssim(images, other), ssim(other, images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("strength", [0.4, 1.3, 6.0])
def test_blur_is_scipys(images, strength):
    found = degrade(images[:2], BLUR, strength).numpy().astype(float)
    radius = min(int(np.ceil(4 * strength)), 31)
    expected = scipy.ndimage.gaussian_filter(images[:2].numpy().astype(float), (0, 0, strength, strength), mode="mirror", radius=radius)
    assert np.abs(found - expected).max() <= 0.51  # rounded to whole grey levels


def test_noise_has_the_deviation_asked_for_and_mean_zero():
    grey = torch.full((40, 3, 32, 32), 128, dtype=torch.uint8)
    change = degrade(grey, GAUSSIAN, 12.0, seed=3).double() - 128
    count = change.numel()
    # Rounding to whole levels adds 1/12 to the variance; four standard errors.
    assert float(change.mean()) == pytest.approx(0, abs=4 * 12 / count**0.5)
    assert float(change.std()) == pytest.approx((144 + 1 / 12) ** 0.5, abs=4 * 12 / (2 * count) ** 0.5)


def test_the_seed_decides_the_noise_the_strength_scales_it_and_chunks_do_not_repeat_it(images):
    one, two, other = (degrade(images, GAUSSIAN, 5.0, seed) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    grey = torch.full((33, 3, 8, 8), 128, dtype=torch.uint8)
    weak, strong = (degrade(grey, GAUSSIAN, strength, 0).double() - 128 for strength in (10.0, 20.0))
    assert (strong - 2 * weak).abs().max() <= 1.5  # each is rounded by at most 0.5, the weak one twice
    assert len({tuple(image.flatten().tolist()) for image in weak}) == 33
    expected = torch.rand(1, generator=torch.Generator().manual_seed(5))
    torch.manual_seed(5)
    degrade(images, GAUSSIAN, 5.0, 0)
    assert torch.equal(torch.rand(1), expected)


def test_strength_0_is_the_identity_and_images_are_never_changed_in_place(images, autoencoder):
    kept = images.clone()
    for generator in (BLUR, GAUSSIAN, autoencoder):
        same = degrade(images, generator, 0)
        assert torch.equal(same, images)
        assert same.data_ptr() != images.data_ptr()
        changed = degrade(images, generator, 0.9 * greatest_strength(generator, 32))
        assert changed.dtype == torch.uint8
        assert changed.shape == images.shape
        assert not torch.equal(changed, images)
    assert torch.equal(images, kept)


def test_the_mean_ssim_falls_with_the_strength(images, autoencoder):
    for generator in (BLUR, GAUSSIAN):
        values = [mean_ssim(images, generator, share * greatest_strength(generator, 32)) for share in (0, 0.04, 0.1, 0.2, 0.5, 1)]
        assert np.diff(values).max() < 0, generator.name
    blended = [mean_ssim(images, autoencoder, strength) for strength in np.linspace(0, 1, 9)]
    assert np.diff(blended).max() < 0
    # Between two numbers of channels a short training leaves small rises.
    narrowed = [mean_ssim(images, autoencoder, strength) for strength in (1, 2, 3, 4, 5)]
    assert np.diff(narrowed).max() < 0.01
    assert narrowed[-1] < narrowed[0] - 0.1


def test_the_autoencoder_blends_up_to_1_and_loses_everything_at_its_end(images, autoencoder):
    whole = degrade(images, autoencoder, 1.0).double()
    half = degrade(images, autoencoder, 0.5).double()
    assert (half - (images.double() + whole) / 2).abs().max() <= 0.76  # two roundings, one of them halved
    nothing = degrade(images, autoencoder, greatest_strength(autoencoder, 32))
    assert greatest_strength(autoencoder, 32) == 5
    assert torch.equal(nothing, nothing[:1].expand_as(nothing))
    assert not torch.equal(whole[0], whole[1])


def test_the_number_of_channels_kept_scales_the_code():
    torch.manual_seed(0)
    network = AutoEncoder(3)
    images, codes = torch.rand(3, 3, 8, 8), []
    network.widen.register_forward_pre_hook(lambda module, given: codes.append(given[0]))
    network(images, torch.tensor([0.0, 1.25, 3.0]))
    expected = network.encoder(images) * torch.tensor([[0, 0, 0], [1, 0.25, 0], [1, 1, 1]])[:, :, None, None]
    torch.testing.assert_close(codes[0], expected)


def test_training_lowers_the_error_and_the_seed_decides_it(trained, images):
    pixels, network = trained

    def error(model):
        with torch.no_grad():
            return float((model(images / 255, torch.full((20,), 4.0)) - images / 255).square().mean())

    spread = float((images / 255).var((0, 2, 3)).mean())
    assert error(network) < spread / 3  # the mean colour alone leaves all of it
    assert not network.training
    one, two, other = (train_autoencoder(pixels[:40], width=2, epochs=1, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["colour.1.weight"], other["colour.1.weight"])


def test_training_works_under_inference_mode_and_leaves_the_global_generator_alone(trained):
    pixels = trained[0][:16]
    expected = train_autoencoder(pixels, width=2, epochs=1, seed=1)
    torch.manual_seed(5)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    with torch.inference_mode():
        found = train_autoencoder(pixels, width=2, epochs=1, seed=1)
    assert torch.equal(torch.rand(1), drawn)
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in found.state_dict().items())


def test_degrading_leaves_the_networks_mode_and_gradients(images):
    network = AutoEncoder(2).train()
    degrade(images, noise_generator("autoencoder", network), 1.5)
    assert all(module.training for module in network.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("target", [0.95, 0.8, 0.6])
def test_calibration_hits_each_target(images, autoencoder, target):
    for generator in (BLUR, GAUSSIAN, autoencoder):
        found = calibrate(generator, images, target, tolerance=0.01, seed=4)
        assert abs(found.reached - target) <= 0.01
        assert mean_ssim(images, generator, found.strength, seed=4) == found.reached


def test_a_smaller_tolerance_is_kept_and_target_1_is_the_identity(images):
    assert abs(calibrate(BLUR, images, 0.7, tolerance=0.002).reached - 0.7) <= 0.002
    assert calibrate(BLUR, images, 1.0) == (0.0, 1.0)


@pytest.mark.parametrize("name", ["blur", "gaussian", "autoencoder"])
def test_levels_calibrated_one_after_the_other_use_what_was_tried(images, autoencoder, monkeypatch, name):
    generator = autoencoder if name == "autoencoder" else noise_generator(name)
    computed = []
    monkeypatch.setattr(noise, "ssim", lambda *pair: computed.append(1) or ssim(*pair))
    targets, tried = [0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95], {}
    for target in targets:
        found = calibrate(generator, images, target, tried=tried)
        assert abs(found.reached - target) <= 0.01
        assert tried[found.strength] == found.reached == mean_ssim(images, generator, found.strength)
    assert len(computed) == len(tried) - 1 <= 3 * len(targets)


def test_a_target_out_of_reach_names_it_what_was_reached_and_the_generator(images, autoencoder):
    least = mean_ssim(images, autoencoder, 5.0)
    message = rf"^a mean SSIM of 0.02 within 0.01 cannot be reached by 'autoencoder': the nearest is {least:.4f}, at strength 5$"
    with pytest.raises(ValueError, match=message):
        calibrate(autoencoder, images, 0.02)
    grey = torch.full((2, 3, 16, 16), 100, dtype=torch.uint8)
    with pytest.raises(
        ValueError, match=r"^a mean SSIM of 0.8 within 0.01 cannot be reached by 'blur': the nearest is 1.0000, at strength"
    ):
        calibrate(BLUR, grey, 0.8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: noise_generator("jpeg"), "noise generator 'jpeg' is unknown; choose one of blur, gaussian, autoencoder"),
        (lambda x: noise_generator("autoencoder"), "noise generator 'autoencoder' got NoneType; 'autoencoder' takes an AutoEncoder"),
        (lambda x: noise_generator("blur", AutoEncoder(2)), "noise generator 'blur' got AutoEncoder"),
        (lambda x: noise_generator("autoencoder", nn.Identity()), "noise generator 'autoencoder' got Identity"),
        (lambda x: degrade(x, BLUR, -0.1), "strength -0.1 of 'blur' must be in [0, 8]"),
        (lambda x: degrade(x, GAUSSIAN, 256), "strength 256 of 'gaussian' must be in [0, 255]"),
        (lambda x: degrade(x, GAUSSIAN, float("nan")), "strength nan of 'gaussian' must be in [0, 255]"),
        (
            lambda x: degrade(x.float(), BLUR, 1),
            "images must be (N, 3, H, W) uint8 with sides of at least 8, got (20, 3, 32, 32) torch.float",
        ),
        (lambda x: degrade(x[..., :7], BLUR, 1), "sides of at least 8, got (20, 3, 32, 7)"),
        (lambda x: ssim(x, x[:3]), "degraded must be uint8 of shape (20, 3, 32, 32), got (3, 3, 32, 32) torch.uint8"),
        (lambda x: calibrate(BLUR, x[:0], 0.8), "images are none; a mean SSIM needs at least 1"),
        (lambda x: calibrate(BLUR, x, 1.1), "target 1.1 must be in (0, 1] and tolerance 0.01 above 0"),
        (lambda x: calibrate(BLUR, x, 0.8, tolerance=0), "target 0.8 must be in (0, 1] and tolerance 0 above 0"),
        (lambda x: train_autoencoder(x[:0], seed=0), "the number of images is 0; it must be at least 1"),
        (lambda x: train_autoencoder(x, width=0, seed=0), "width is 0; it must be at least 1"),
        (lambda x: train_autoencoder(x, epochs=0, seed=0), "epochs is 0; it must be at least 1"),
        (
            lambda x: train_autoencoder(x[..., :30], seed=0),
            "the auto-encoder takes images whose sides are multiples of 4, got (20, 3, 32, 30) torch.uint8",
        ),
    ],
)
def test_refusals(images, call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(images)


def test_no_images_give_no_images(images):
    assert degrade(images[:0], GAUSSIAN, 5.0).shape == (0, 3, 32, 32)
