"""Shifted images: the same bytes for the same seed, the SSIM in their names, and JPEG's loss against libjpeg's."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from helpers.data import shifts
from helpers.data.degrade import ssim
from helpers.measures import transforms


def photographs(n=24, side=32, seed=0):
    """Smooth random pictures with some grain."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 6, 6, generator=generator) * 255
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic", align_corners=False)
    return (smooth + 12 * torch.randn(n, 3, side, side, generator=generator)).round().clamp(0, 255).to(torch.uint8)


IMAGES = photographs()


@pytest.mark.parametrize("name", ["blur_0.9", "noise_0.7", "jpeg_0.7", "brightness_0.5", "contrast_0.5", "rotation_15", "rotation_30"])
def test_every_shift_gives_bytes_of_the_same_shape_and_the_same_ones_again(name):
    before = IMAGES.clone()
    first, second = shifts.shifted(IMAGES, name, seed=1), shifts.shifted(IMAGES, name, seed=1)
    assert first.images.dtype == torch.uint8
    assert first.images.shape == IMAGES.shape
    assert torch.equal(first.images, second.images)
    assert first[1:] == second[1:]
    assert not torch.equal(first.images, IMAGES)
    assert torch.equal(IMAGES, before)
    assert first.ssim < 1


@pytest.mark.parametrize("kind", ["blur", "noise", "jpeg"])
def test_the_mean_ssim_is_that_of_the_name_and_lower_is_stronger(kind):
    mild, strong = (shifts.shifted(IMAGES, f"{kind}_{target}") for target in (0.9, 0.7))
    for found, target in ((mild, 0.9), (strong, 0.7)):
        measured = ssim(IMAGES, found.images).double().mean()
        assert float(measured) == pytest.approx(found.ssim, abs=1e-6)
        assert found.ssim == pytest.approx(target, abs=0.0021)
    assert mild.strength < strong.strength


def test_only_noise_depends_on_the_seed_where_all_images_calibrate():
    for name, same in (("noise_0.9", False), ("blur_0.9", True), ("jpeg_0.9", True), ("contrast_0.5", True)):
        assert torch.equal(shifts.shifted(IMAGES, name, 0).images, shifts.shifted(IMAGES, name, 1).images) == same


def test_brightness_contrast_and_rotation_equal_other_libraries():
    picture = Image.fromarray(IMAGES[0].permute(1, 2, 0).numpy())
    brighter = np.asarray(ImageEnhance.Brightness(picture).enhance(0.5)).astype(int)
    assert np.abs(shifts.brightened(IMAGES[:1], 0.5)[0].permute(1, 2, 0).numpy().astype(int) - brighter).max() <= 1
    flatter = np.asarray(ImageEnhance.Contrast(picture).enhance(0.5)).astype(int)
    assert np.abs(shifts.contrasted(IMAGES[:1], 0.5)[0].permute(1, 2, 0).numpy().astype(int) - flatter).max() <= 1
    for degrees in (15.0, -30.0):
        own = transforms.rotate(IMAGES, torch.tensor(degrees)).int()
        assert (shifts.turned(IMAGES, degrees).int() - own).abs().max() <= 1
    assert torch.equal(shifts.turned(IMAGES, 90), IMAGES.rot90(1, (2, 3)))
    bright = torch.full((1, 3, 8, 8), 200, dtype=torch.uint8)
    assert shifts.brightened(bright, 2.0).unique().tolist() == [255]


@pytest.mark.parametrize(("quality", "coarseness"), [(50, 1.0), (25, 2.0)])
def test_the_jpeg_like_loss_is_that_of_libjpeg_where_its_steps_are_whole_multiples(quality, coarseness):
    assert coarseness == (50 / quality if quality < 50 else 2 - quality / 50)
    pictures = IMAGES.permute(0, 2, 3, 1).numpy()
    ours = shifts.jpeg_like(IMAGES, coarseness).permute(0, 2, 3, 1).numpy().astype(float)
    theirs = []
    for picture in pictures:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=quality, subsampling=0)
        theirs.append(np.asarray(Image.open(file)).astype(float))
    # Integer arithmetic rounds a coefficient that lies between two steps the other way now and then; its block then differs, no other.
    assert np.abs(ours - theirs).mean() < 0.03 * np.abs(theirs - pictures).mean()
    assert (ours == theirs).mean() > 0.85


def test_jpeg_like_loss_of_flat_images_and_of_sides_that_are_no_multiple_of_8():
    flat = torch.full((1, 3, 13, 9), 128, dtype=torch.uint8)
    assert torch.equal(shifts.jpeg_like(flat, 3.0), flat)
    assert torch.equal(shifts.jpeg_like(IMAGES, 0.0), IMAGES)
    odd = photographs(2, 21)
    wide = torch.nn.functional.pad(odd.float(), (0, 3, 0, 3), mode="replicate").to(torch.uint8)
    assert torch.equal(shifts.jpeg_like(odd, 2.0), shifts.jpeg_like(wide, 2.0)[..., :21, :21])
    with pytest.raises(ValueError, match="coarseness -1"):
        shifts.jpeg_like(odd, -1)


def test_names_are_taken_apart_and_unknown_ones_refused():
    assert shifts.parsed("blur_0.9") == ("blur", 0.9)
    assert shifts.parsed("rotation_-15") == ("rotation", -15)
    assert shifts.at("test_accuracy", "blur_0.9") == "test_accuracy@blur_0.9"
    assert shifts.at("test_accuracy") == "test_accuracy"
    for name in ("blur", "blur_1.2", "blur_0", "fog_0.9", "rotation_500", "noise_x", "brightness_-1", "contrast_nan", "_0.5"):
        with pytest.raises(ValueError, match=f"shift '{name}' is unknown"):
            shifts.shifted(IMAGES, name)


def test_images_of_another_kind_and_an_ssim_out_of_reach_are_refused():
    for wrong in (IMAGES.float(), IMAGES[0], IMAGES[:0], IMAGES[..., :7]):
        with pytest.raises(ValueError, match="images must be"):
            shifts.shifted(wrong, "rotation_15")
    flat = torch.full((2, 3, 16, 16), 90, dtype=torch.uint8)
    with pytest.raises(ValueError, match="cannot be made of these images: the nearest mean SSIM is 1"):
        shifts.shifted(flat, "blur_0.9")


def test_copies_are_made_once_kept_and_made_again_when_damaged(tmp_path, monkeypatch):
    made = shifts.kept(tmp_path, IMAGES, "noise_0.9", 3)
    assert torch.equal(made.images, shifts.shifted(IMAGES, "noise_0.9", 3).images)
    path = next(tmp_path.glob("noise_0.9-*.safetensors"))
    whole = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(shifts, "shifted", lambda *given: pytest.fail("made twice"))
        again = shifts.kept(tmp_path, IMAGES, "noise_0.9", 3)
    assert torch.equal(again.images, made.images)
    assert again[1:] == made[1:]
    path.unlink()  # not cut in place: what is mapped must not lose its pages
    path.write_bytes(whole[:200])
    with pytest.warns(UserWarning, match=r"safetensors: not as it was written; it is made again"):
        assert torch.equal(shifts.kept(tmp_path, IMAGES, "noise_0.9", 3).images, made.images)
    assert path.read_bytes() == whole
    shifts.kept(tmp_path, IMAGES.flip(0), "noise_0.9", 3)
    shifts.kept(tmp_path, IMAGES, "noise_0.9", 4)
    assert len(list(tmp_path.iterdir())) == 6  # three copies and their seals, nothing partial
