"""Files of every kind to squares, boxes beside them, and what is wrong with them."""

import io

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from helpers.data.decode import decode_image, square_boxes
from helpers.data.layouts import Record
from helpers.data.sources import Source
from tests.conftest import jpeg
from tests.data.conftest import written


def decoded(folder, content, stated=None, boxes=(), size=16):
    """One file, with boxes of a stated size."""
    source = Source(written(folder, {"a.jpg": content}))
    record = Record("a.jpg", "cat", "train", boxes, stated)
    return decode_image(source, size, bool(boxes), record)


def saved(pixels, kind="PNG", **options):
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, kind, **options)
    return buffer.getvalue()


def test_pixels_are_those_of_the_file_squashed(tmp_path):
    picture = Image.open(io.BytesIO(jpeg(3)))
    expected = np.asarray(picture.resize((16, 16), Image.Resampling.BILINEAR))
    pixels = decoded(tmp_path, jpeg(3)).pixels
    assert np.array_equal(pixels.transpose(1, 2, 0), expected)


@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "RGBA", "LA", "1"])
def test_every_mode_becomes_rgb_without_a_fault(tmp_path, mode):
    kind = "JPEG" if mode in ("L", "CMYK") else "PNG"
    found = decoded(tmp_path, jpeg(1, mode=mode, kind=kind))
    assert (found.pixels.shape, found.problems) == ((3, 16, 16), [])
    assert (found.pixels[0] == found.pixels[1]).all() == (mode in ("L", "LA", "1"))


@pytest.mark.parametrize("dtype", ["uint16", ">u2", "int32", "float32"])
def test_deep_grey_values_are_refused_and_never_blank(tmp_path, dtype):
    grey = np.linspace(0, 4095, 256).reshape(16, 16).astype(dtype)
    found = decoded(tmp_path, saved(grey, "TIFF"))
    assert found.pixels is None
    assert "save them as an image of 8 bits" in found.problems[0][1]


# How a camera stores, for each value of the tag, what a viewer shows upright.
STORED = {
    1: lambda shown: shown,
    2: np.fliplr,
    3: lambda shown: np.rot90(shown, 2),
    4: np.flipud,
    5: lambda shown: np.swapaxes(shown, 0, 1),
    6: lambda shown: np.rot90(shown, 1),
    7: lambda shown: np.rot90(np.swapaxes(shown, 0, 1), 2),
    8: lambda shown: np.rot90(shown, -1),
}


@pytest.mark.parametrize("tag", STORED)
@pytest.mark.parametrize("stated", [None, (24, 16), (1, 1)])
def test_boxes_lie_on_the_picture_as_it_is_shown(tmp_path, tag, stated):
    """A white object in a black picture of 24 x 16, whichever way it is stored."""
    shown = np.zeros((16, 24, 3), dtype=np.uint8)
    shown[4:8, 12:21] = 255
    exif = Image.Exif()
    exif[0x0112] = tag
    stored = STORED[tag](shown)
    content = saved(stored, exif=exif)
    box = (0.5, 0.25, 0.875, 0.5) if stated == (1, 1) else (12, 4, 21, 8)
    found = decoded(tmp_path, content, stated, (box,), size=48)
    x0, y0, x1, y1 = found.square_boxes[0]
    inside = found.pixels[0, y0 + 2 : y1 - 2, x0 + 2 : x1 - 2]
    assert inside.min() == 255 and found.problems == []
    assert found.pixels.sum() < 1.3 * 3 * 255 * (x1 - x0) * (y1 - y0)
    bare = decoded(tmp_path, content)  # without a box, as it is stored
    plain = decoded(tmp_path, saved(stored))
    assert np.array_equal(bare.pixels, plain.pixels)
    assert bare.digest == found.digest


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_an_image_with_a_damaged_exif_block_is_as_it_is_stored(tmp_path):
    content = jpeg(3, exif=b"Exif\0\0MM\0*\xff\xff\xff\xff\0")
    found = decoded(tmp_path, content, None, ((0, 0, 8, 8),))
    assert np.array_equal(found.pixels, decoded(tmp_path, content).pixels)


def test_exif_rotation_is_left_out_where_the_annotation_has_the_stored_size(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned: stored 20 x 16, seen 16 x 20
    turned, plain = jpeg(3, exif=exif), jpeg(3)
    given = ((turned, (20, 16)), (turned, (16, 20)), (plain, (16, 20)))
    stored, seen, without = (
        decoded(tmp_path, content, size, ((0, 0, 8, 8),)) for content, size in given
    )
    assert [image.problems for image in (stored, seen)] == [[], []]
    (problem,) = without.problems
    expected = ("size_differs_from_annotation", "stored 20x16, annotated 16x20")
    assert problem == expected
    assert np.array_equal(stored.pixels, without.pixels)  # no tag, nothing to turn
    assert not np.array_equal(stored.pixels, seen.pixels)
    assert seen.square_boxes == [(0, 0, 8, 6)]  # of 16 x 20
    assert stored.square_boxes == [(0, 0, 6, 8)]  # of 20 x 16


@pytest.mark.parametrize(
    ("boxes", "size", "expected", "kinds"),
    [
        (((2, 2, 12, 10),), (20, 16), [(1, 2, 9, 10)], []),  # x times 0.8
        (((20, 16, 40, 32),), (40, 32), [(8, 8, 16, 16)], []),
        (((0.5, 0.25, 1, 1),), (1, 1), [(8, 4, 16, 16)], []),  # shares of the image
        (((-4, -4, 10, 8),), (20, 16), [(0, 0, 8, 8)], ["box_outside_clipped"]),
        (((20, 20, 30, 30),), (20, 16), [], ["box_without_area"]),
        (((5, 5, 5, 9), (9, 9, 5, 5)), None, [], ["box_without_area"] * 2),
        (((3, 3, 3.6, 12),), None, [], ["box_without_area"]),
    ],
)
def test_boxes_are_scaled_clipped_and_truncated(boxes, size, expected, kinds):
    record = Record("a.jpg", "a", "train", boxes, size)
    usable, problems, _ = square_boxes(record, (20, 16), 16)
    assert (usable, [kind for kind, _ in problems]) == (expected, kinds)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 16\n%%EndComments\n"


@pytest.mark.parametrize(
    "content",
    [jpeg(1)[:400], b"a text", b"", b"\x89PNG\r\n\x1a\n" + bytes(40), POSTSCRIPT],
)
def test_damaged_files_are_counted_in_the_same_words(tmp_path, monkeypatch, content):
    """Pillow hands Postscript to Ghostscript where that is installed."""
    fail = lambda image: pytest.fail("opened")  # noqa: E731
    monkeypatch.setattr(EpsImagePlugin.EpsImageFile, "_open", fail)
    first, again = decoded(tmp_path, content), decoded(tmp_path, content)
    assert (first.pixels, first.problems) == (None, again.problems)
    ((kind, words),) = first.problems
    assert kind == "unreadable_image" and "0x" not in words


def test_bombs_are_not_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 150)  # the picture has 320
    assert "DecompressionBomb" in decoded(tmp_path, jpeg(1)).problems[0][1]
