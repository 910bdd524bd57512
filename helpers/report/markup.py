"""Names in text: those from data are read as they are and never followed, those of figures are written as titles."""

import re

# Just after "<" before a tag; between "]" and what makes a link of it; inside of an address; after a backslash before TeX's links.
_LIVE = re.compile(r"(?<=<)(?=[A-Za-z/!?])|(?<=\])(?=[(\[:])|(?<=:)(?=//)|(?<=www)(?=\.)|(?<=\\)(?=href|url|html)", re.I)


def inert(markdown: str) -> str:
    """Markdown whose emphasis and code live and in which nothing else does: names from data make no HTML, links or images.

    An invisible character (zero-width non-joiner) parts what would begin a tag, a link or an address, so that a name reads as it is,
    in code too, where an escape would show.
    """
    return _LIVE.sub("\u200c", markdown)


# Words of a figure's name that are written otherwise.
_WORDS = {"cam": "CAM", "iou": "IoU", "roc": "ROC", "clip": "CLIP", "resnet": "ResNet", "efficientnet": "EfficientNet", "kappa": "Kappa"}


def figure_title(name: str) -> str:
    """Title of a figure by its name: "iou-against-gap" is "IoU against gap"."""
    words = " ".join(_WORDS.get(word, word) for word in name.split("-"))
    return words[:1].upper() + words[1:]
