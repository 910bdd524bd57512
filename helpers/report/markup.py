"""Names in text.

Names from data are shown as they are and never become links or HTML; names of figures
and columns are written in words.
"""

import re
from collections.abc import Mapping
from typing import Any

# Places before which Markdown would begin a tag, a link or an address.
_LIVE = re.compile(
    r"""
    (?<=<)(?=[A-Za-z/!?])  # before the name of a tag
    | (?<=\])(?=[(\[:])  # between words in brackets and their address
    | (?<=:)(?=//) | (?<=www)(?=\.)  # inside of an address
    | (?<=\\)(?=href|url|html)  # before a link of TeX
    """,
    re.I | re.X,
)
_WORDS = {
    "cam": "CAM",
    "iou": "IoU",
    "kappa": "Kappa",
    "clip": "CLIP",
    "roc": "ROC",
    "ssim": "SSIM",
    # Words that columns of tables shorten.
    "cells": "configurations",
    "ours": "here",
    "points": "(points)",
    "train": "training",
    "twins": "in every architecture",
}
_KIND = re.compile(
    r"(?P<architecture>\S+) (?P<start>pretrained|scratch) (?P<details>.+)"
)
# Titles of figures whose names say too little.
_TITLES = {"primary": "The primary analysis"}


def inert(markdown: str) -> str:
    """Markdown in which names from data make no HTML, links or images.

    An invisible character (zero-width non-joiner) is put where a tag, a link or an
    address would begin. So a name reads as it is, in code too, where an escape would be
    visible.
    """
    return _LIVE.sub("\u200c", markdown)


def in_words(name: str) -> str:
    """Words of a name that is joined by "-" or "_", or of a kind of training.

    Example:
        >>> in_words("mean_iou"), in_words("resnet18")
        ('mean IoU', 'ResNet18')
        >>> in_words("resnet18 scratch plain 125 a class")
        'ResNet18, from scratch, 125 a class'
    """
    kind = _KIND.fullmatch(name)
    if kind:
        start = "from scratch" if kind["start"] == "scratch" else "pretrained"
        details = kind["details"].removeprefix("plain").strip()
        parts = [in_words(kind["architecture"]), start, details]
        return ", ".join(filter(None, parts))
    words = " ".join(_WORDS.get(part, part) for part in re.split("[-_]", name))
    words = words.replace("IoU b", "IoU-B").replace("resnet", "ResNet")
    return words.replace("efficientnet", "EfficientNet")


def kind_words(row: Mapping[str, Any]) -> str:
    """The kind of training of a network in words, without its architecture.

    Example:
        >>> kind_words({"kind": "resnet18 pretrained plain 125 a class"})
        'pretrained, 125 a class'
    """
    return in_words(row["kind"]).partition(", ")[2]


def figure_title(name: str) -> str:
    """Title of a figure by its name.

    Example:
        >>> figure_title("huang-figure-2-iou-against-gap")
        'IoU against gap (Huang et al., Figure 2)'
    """
    author, number, rest = re.match(r"(?:(\w+)-figure-(\d+)-)?(.*)", name).groups()
    words = _TITLES.get(rest) or in_words(rest)
    title = words[:1].upper() + words[1:]
    return f"{title} ({author.title()} et al., Figure {number})" if number else title
