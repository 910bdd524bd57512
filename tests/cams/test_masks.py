"""Masks made by a machine: against the papers' steps written out, files of every kind, and scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics
import torch
from PIL import Image
from scipy.signal import convolve2d

from helpers.cams import localize
from helpers.cams import masks as machine
from helpers.data.images import ImageSet, box_masks


def spot(size, x0, y0, x1, y1, ground=60, light=200):
    """A bright rectangle on a dim, slightly noisy ground: (1, 3, S, S) uint8 and its mask."""
    mask = torch.zeros(1, size, size, dtype=torch.bool)
    mask[:, y0:y1, x0:x1] = True
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 8, (3, size, size)))
    return (torch.where(mask.unsqueeze(1), light, ground) + noise).byte(), mask


def within_variance(values, threshold):
    """Otsu's other form: the variance that is left inside the two groups, which is to be least."""
    return sum(
        ((group - group.mean()) ** 2).sum()
        for group in (values[values <= threshold], values[values > threshold])
    )


@pytest.mark.parametrize("levels", [3, 256, 100_000])
def test_otsu_leaves_the_least_variance_within_the_groups(levels):
    rng = np.random.default_rng(levels)
    means = np.where(rng.random((5, 12, 12)) < 0.3, 0.7, 0.2)
    maps = np.round(rng.normal(means, 0.1) * levels)
    found = machine.otsu_thresholds(torch.as_tensor(maps))
    for values, threshold in zip(maps, found.tolist(), strict=True):
        candidates = np.unique(values)[:-1]
        left = {each: within_variance(values, each) for each in candidates}
        assert threshold in left
        assert left[threshold] == pytest.approx(min(left.values()), rel=1e-9)
    assert machine.otsu_thresholds(torch.full((1, 3, 3), 0.1)).isnan().all()


def residual_by_loop(image):
    """Hou and Zhang 2007 for one 64 x 64 image, with the mean and the Gaussian written out; up to the blur's cut at 4 sigma."""
    grey = 0.299 * image[0].astype(float) + 0.587 * image[1] + 0.114 * image[2]
    spectrum = np.fft.fft2(grey)
    logarithm = np.log(np.abs(spectrum))
    padded = np.pad(logarithm, 1, mode="edge")
    mean = sum(padded[y : y + 64, x : x + 64] for y, x in np.ndindex(3, 3)) / 9
    residual = spectrum / np.abs(spectrum) * np.exp(logarithm - mean)
    salient = np.abs(np.fft.ifft2(residual)) ** 2
    reach = np.arange(-10, 11)
    kernel = np.exp(-(reach**2) / (2 * 2.5**2))
    kernel /= kernel.sum()
    padded = np.pad(salient, 10, mode="edge")
    return convolve2d(padded, np.outer(kernel, kernel), mode="valid")


def test_the_spectral_residual_is_the_papers():
    images, _ = spot(64, 10, 20, 25, 44)
    found = machine.spectral_residual(images)
    np.testing.assert_allclose(found[0], residual_by_loop(images[0].numpy()), rtol=1e-9)
    threshold = machine.otsu_thresholds(found).item()
    assert (found[0] == threshold).any()  # which is of the lower group
    batch = ImageSet(images, torch.zeros(1), torch.zeros(1, 0, 4), ("a",))
    (mask,) = machine.make_masks("spectral_residual", batch)
    assert torch.equal(mask, found[0] > threshold)


def write(path, array):
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(array).save(path)


def test_masks_are_read_in_the_order_of_the_names(images, tmp_path):
    names = ("x_3.JPEG", "b/1", "a/1.JPEG", "b/v1.2.jpg", "z.png")
    masks = np.random.default_rng(1).random((5, 16, 16)) > 0.5
    for name, mask in zip(["x_3", "b/1", "a/1", "b/v1.2", "z"], masks, strict=True):
        write(tmp_path / f"{name}.png", mask)
    found = machine.make_masks("folder", replace(images, names=names), str(tmp_path))
    assert torch.equal(found, torch.from_numpy(masks))


INSIDE = np.zeros((6, 4), dtype=np.uint8)
INSIDE[:3, 2:] = 1
NOTHING, OPAQUE = np.zeros_like(INSIDE), np.full_like(INSIDE, 255)
BLUE = [NOTHING, NOTHING, INSIDE]


@pytest.mark.parametrize(
    "array", [INSIDE > 0, INSIDE, np.stack(BLUE, 2), np.stack([*BLUE, OPAQUE], 2)]
)
def test_every_pixel_counts_that_is_not_black(tmp_path, array):
    write(tmp_path / "m.png", array)
    (mask,) = machine.masks_from_folder(tmp_path, ["m.jpg"], 12)
    # From 6 x 4 to 12 x 12: every row twice, every column three times.
    assert torch.equal(mask, torch.from_numpy(INSIDE > 0).kron(torch.ones(2, 3)) > 0)


def test_a_mask_that_is_missing_or_no_png_is_refused(tmp_path):
    (tmp_path / "text.png").write_text("%!PS-Adobe-3.0 EPSF-3.0")
    with pytest.raises(OSError, match=r"cannot identify image file .*text\.png"):
        machine.masks_from_folder(tmp_path, ["text.jpg"], 2)
    with pytest.raises(FileNotFoundError, match=r"a\.png"):
        machine.masks_from_folder(tmp_path, ["a.jpg"], 2)


@pytest.fixture
def images():
    """Five noisy images with a box each; the last has none."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (5, 3, 16, 16), dtype=np.uint8))
    corners = [[2, 2, 10, 10], [0, 0, 16, 16], [4, 0, 8, 16], [1, 1, 3, 3], [0] * 4]
    boxes = torch.tensor(corners, dtype=torch.int16).unsqueeze(1)
    names = tuple(f"a/{number}.jpg" for number in range(5))
    return ImageSet(pixels, torch.zeros(5, dtype=torch.int64), boxes, names)


def test_grab_cut_marks_a_spot_and_nothing_where_nothing_is(images):
    pytest.importorskip("cv2", reason="the extra saliency is not installed")
    pixels, truth = spot(64, 10, 20, 32, 44)
    flat = torch.full((1, 3, 64, 64), 137, dtype=torch.uint8)
    masks = machine.grab_cut_masks(torch.cat([pixels, flat, pixels.flip(3)]))
    assert masks[0][truth[0]].float().mean() > 2 * masks[0][~truth[0]].float().mean()
    assert masks[1].float().mean() < 0.05
    assert localize.mask_iou(masks[2:].flip(2), masks[:1]).item() > 0.8
    assert torch.equal(machine.grab_cut_masks(pixels), masks[:1])
    first = machine.spectral_residual_masks(pixels)
    truth_iou = localize.mask_iou(torch.cat([masks[:1], first]), truth.repeat(2, 1, 1))
    assert truth_iou[0] > truth_iou[1]  # colours find what the residual begins
    batch = ImageSet(pixels, images.labels[:1], images.boxes[:1], images.names[:1])
    assert torch.equal(machine.make_masks("grab_cut", batch), masks[:1])


def test_quality_counts_pixels_of_images_whose_mask_is_not_empty(images):
    masks = torch.from_numpy(np.random.default_rng(2).random((5, 16, 16)) > 0.5)
    masks[1] = False
    quality = machine.mask_quality(masks, images)
    kept = [0, 2, 3, 4]
    true = box_masks(images.boxes, 16)[kept].flatten().numpy()
    called = masks[kept].flatten().numpy()
    ious = sklearn.metrics.jaccard_score(true, called, average=None)
    weighted = sklearn.metrics.jaccard_score(true, called, average="weighted")
    expected = {
        "pixel_accuracy": sklearn.metrics.accuracy_score(true, called),
        "mean_pixel_accuracy": sklearn.metrics.balanced_accuracy_score(true, called),
        "iou_background": ious[0],
        "iou_object": ious[1],
        "mean_iou": ious.mean(),
        "frequency_weighted_iou": weighted,
        "object_fraction": true.mean(),
    }
    assert {name: quality[name] for name in expected} == pytest.approx(expected)
    assert (quality["images"], quality["dropped"]) == (5, 1)
    boxes = box_masks(images.boxes, 16)[:4]  # the last image has no box
    flat = boxes.flatten(1), masks[:4].flatten(1)
    expected = sklearn.metrics.jaccard_score(*flat, average="samples")
    assert quality["box_iou"] == pytest.approx(expected)
    floor = pytest.approx((0.25 + 1 + 0.25 + 4 / 256) / 4)
    whole = machine.mask_quality(torch.ones(5, 16, 16, dtype=torch.bool), images)
    assert quality["whole_image_floor"] == whole["box_iou"] == floor
