"""Names in text: those from data are read as they are and never followed, those of figures and columns are written in words."""

import re

# Just after "<" before a tag; between "]" and what makes a link of it; inside of an address; after a backslash before TeX's links.
_LIVE = re.compile(
    r"(?<=<)(?=[A-Za-z/!?])|(?<=\])(?=[(\[:])|(?<=:)(?=//)|(?<=www)(?=\.)|(?<=\\)(?=href|url|html)",
    re.I,
)
_WORDS = {
    "cam": "CAM",
    "iou": "IoU",
    "kappa": "Kappa",
    "clip": "CLIP",
    "roc": "ROC",
    "ssim": "SSIM",
}
_TITLES = {
    "primary": "The primary analysis"
}  # of figures whose names alone say too little


def inert(markdown: str) -> str:
    """Markdown whose emphasis and code live and in which nothing else does: names from data make no HTML, links or images.

    An invisible character (zero-width non-joiner) parts what would begin a tag, a link or an address, so that a name reads as it is,
    in code too, where an escape would show.
    """
    return _LIVE.sub("\u200c", markdown)


def in_words(name: str) -> str:
    """Words of a name that is joined by "-" or "_": "mean_iou" is "mean IoU", "resnet18" is "ResNet18"."""
    words = " ".join(_WORDS.get(part, part) for part in re.split("[-_]", name)).replace(
        "IoU b", "IoU-B"
    )
    return words.replace("resnet", "ResNet").replace("efficientnet", "EfficientNet")


def figure_title(name: str) -> str:
    """Title of a figure by its name: "iou-against-gap" is "IoU against gap", "huang-figure-2-x" is "X (Huang et al., Figure 2)"."""
    author, number, rest = re.match(r"(?:(\w+)-figure-(\d+)-)?(.*)", name).groups()
    words = _TITLES.get(rest) or in_words(rest)
    return (
        words[:1].upper()
        + words[1:]
        + (f" ({author.title()} et al., Figure {number})" if number else "")
    )
