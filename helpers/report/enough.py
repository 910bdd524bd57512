"""How many images a measure of single images needs to tell models apart."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.measures import registry
from helpers.report.style import count
from helpers.statistics.reliability import images_needed, reliability

WANTED = 0.95  # reliability


ENOUGH_COLUMNS = ["measure", "title", "images", "reliability", "images_enough"]


def images_enough(values: Mapping[str, ArrayLike]) -> pd.DataFrame:
    """Ask of each measure that is a mean over images how many would have given a reliability of 0.95.

    The reliability on all images comes from random halves of them, see ``reliability.split_half``; the number from it by the formula of
    Spearman and Brown.

    Args:
        values: by measure, (models, images), see ``single_images.image_values``; what is no ranked measure is left out.

    Returns:
        ``ENOUGH_COLUMNS``, in the order of the list of measures; images_enough is NaN where the reliability is not between 0 and 1.
    """
    rows = []
    for name, item in registry.ranked().items():
        if name in values:
            table = np.asarray(values[name], dtype=float)
            found, images = reliability(table), table.shape[1]
            rows.append(dict(zip(ENOUGH_COLUMNS, [name, item.title, images, found, images_needed(found, images, WANTED)], strict=True)))
    return pd.DataFrame(rows, columns=ENOUGH_COLUMNS)


def say_images_enough(table: pd.DataFrame) -> str:
    """Say for which measures fewer images would have been enough, and which need more than were scored."""
    known = table.dropna(subset="images_enough")
    if not len(known):
        return "No measure has a reliability by which a number of images could be told."
    images = int(known["images"].iloc[0])
    few, many = known[known["images_enough"] <= images], known[known["images_enough"] > images]
    parts = [f"{row.title} {row.images_enough:,.0f}" for row in few.itertuples()]
    text = f"For a reliability of {WANTED:g} these numbers of images would have been enough: {', '.join(parts)}. " if parts else ""
    more = [f"{row.title} (reliability {row.reliability:.2f})" for row in many.itertuples()]
    return text + (f"The {count(images, 'image')} scored are not enough for {', '.join(more)}." if more else "")
