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


# Words of a name that are written otherwise.
_WORDS = {
    "cam": "CAM",
    "clip": "CLIP",
    "efficientnet": "EfficientNet",
    "iou": "IoU",
    "kappa": "Kappa",
    "resnet": "ResNet",
    "roc": "ROC",
    "ssim": "SSIM",
}
_TITLES = {  # of figures whose name says too little of them
    "added": "Error of prediction that each measure saves",
    "attributions": "Attributions in place of a class activation map",
    "classes": "Images and classes that are scored",
    "confounding": "IoU and gap, hyperparameters held fixed",
    "confusion": "Confusion of the most accurate model",
    "divergence": "Distance from the clean cell",
    "error": "Error by noise and unseen classes",
    "invariance": "Accuracy under perturbations, by training images alone",
    "kappa-loss": "Kappa loss by noise and unseen classes",
    "late-changes": "Changes in the last epochs",
    "layer": "Layer of the map",
    "masks": "Masks made by a machine",
    "per-class": "Precision, recall and F1 by class",
    "ranking": "Every measure by the same questions",
    "saliency": "Annotated boxes and masks made by a machine",
    "sensitivity": "Trade-off point by the weight of the demands",
    "threshold": "Threshold of the map",
    "unlabelled": "Error of the predicted accuracy",
}


def figure_title(name: str) -> str:
    """Title of a figure by its name: "iou-against-gap" is "IoU against gap"."""
    number, rest = re.match(r"(?:\w+-figure-(\d+)-)?(.*)", name).groups()
    return _titled(_TITLES.get(rest) or in_words(rest), "Figure", number)


def table_title(name: str) -> str:
    """Title of a table by its name: "table3_iou" is "IoU (Table 3 of the paper)"."""
    number, rest = re.match(r"(?:table(\d+)_)?(.*)", name).groups()
    return _titled(in_words(rest), "Table", number)


def in_words(name: str) -> str:
    """Words of a name that is joined by "-" or "_": "mean_iou" is "mean IoU"."""
    return " ".join(_WORDS.get(part, part) for part in re.split("[-_]", name))


def _titled(words: str, kind: str, number: str | None) -> str:
    return words[:1].upper() + words[1:] + (f" ({kind} {number} of the paper)" if number else "")
