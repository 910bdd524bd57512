"""Figures as small files, the same bytes each time."""

import io
import re
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image


def _show_names_as_written(figure: Figure) -> None:
    """Let ``$`` in names be a character; only labels of log scales are formulas."""
    for axes in figure.axes:
        # Texts of ticks are set when they are asked for.
        axes.get_xticklabels()
        axes.get_yticklabels()
    for text in figure.findobj(Text):
        if "$" in text.get_text() and r"\math" not in text.get_text():
            text.set_parse_math(False)


def as_file(figure: Figure, **look: Any) -> bytes:
    """A figure as a small file, the same bytes each time.

    Args:
        figure: is not closed.
        look: options of ``Figure.savefig``, such as dpi and format.

    Returns:
        PNG with 256 colours, or SVG with two decimals and without metadata.
    """
    _show_names_as_written(figure)
    is_vector = look.get("format") == "svg"
    file = io.BytesIO()
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "workbook"}):
        figure.savefig(
            file,
            bbox_inches="tight",
            facecolor="white",
            metadata={"Date": None} if is_vector else None,
            **look,
        )
    if is_vector:
        return _short_svg(file.getvalue())
    return _small_png(Image.open(file, formats=["PNG"]))


def resize(picture: bytes, share: float) -> bytes:
    """A PNG at a share of its width and height, with 256 colours.

    Args:
        picture: PNG.
        share: of each side.
    """
    image = Image.open(io.BytesIO(picture), formats=["PNG"]).convert("RGB")
    size = [max(1, round(share * length)) for length in image.size]
    return _small_png(image.resize(size, Image.Resampling.LANCZOS))


def _small_png(image: Image.Image) -> bytes:
    """A picture as PNG with 256 colours."""
    picture = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small = io.BytesIO()
    picture.save(small, "png", optimize=True)
    return small.getvalue()


def _short_svg(text: bytes) -> bytes:
    """An SVG without metadata and indents, with places of two decimals."""
    text = re.sub(rb"<metadata>.*?</metadata>\n", b"", text, flags=re.S)
    text = re.sub(rb' (?:d|x|y)="[^"]*"', _two_decimals, text)
    text = re.sub(rb"\n +", b"\n", text)
    family = b"font-family: Arial, 'DejaVu Sans', sans-serif"
    return re.sub(rb"font-family: [^;\"]*", family, text)


def _two_decimals(attribute: re.Match) -> bytes:
    return re.sub(rb"(\.\d\d)\d+", rb"\1", attribute[0]).replace(b" \n", b"\n")


def is_photographs(vector: bytes) -> bool:
    """Whether most of an SVG are embedded pixels.

    Args:
        vector: SVG.
    """
    pixels = re.findall(rb"data:image/png;base64,[^\"]+", vector)
    return 2 * sum(map(len, pixels)) > len(vector)
