"""What notebook 01 shows: classes, boxes and faults of the data."""

from collections.abc import Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from helpers.data.dataset import ImageSet, StudyData
from helpers.report.style import _LABELLED_CLASSES, _boxes, _show, count, ends, nothing_to_draw, percent, style


@style()
def class_counts(classes: pd.DataFrame) -> Figure | None:
    """Draw training and test images per class as bars, and the paper's count as a line where it has the class.

    None where every class has as many images as any other: the table says it.

    Args:
        classes: class_name, train_images, test_images, published (NaN where the paper has no such class). Of more than 40 classes the
            20 with most and the 20 with fewest training images are drawn.
    """
    if not len(classes):
        return nothing_to_draw("There is no class to count images of.")
    if (classes[["train_images", "test_images"]].nunique() == 1).all():
        return None
    shown, half, title = classes, _LABELLED_CLASSES // 2, None
    if len(classes) > _LABELLED_CLASSES:
        shown = ends(classes.sort_values(["train_images", "test_images"], ascending=False, kind="stable"))
        title = f"{half} largest and {half} smallest of {len(classes)} classes"
    figure, ax = plt.subplots(figsize=(7.5, 0.8 + 0.28 * len(shown)), layout="constrained")
    rows = np.arange(len(shown))
    ax.barh(rows - 0.2, shown["train_images"], height=0.4, label=f"training (n = {classes['train_images'].sum():,})")
    ax.barh(rows + 0.2, shown["test_images"], height=0.4, hatch="//", label=f"test (n = {classes['test_images'].sum():,})")
    if "published" in shown and shown["published"].notna().any():
        ax.plot(shown["published"], rows - 0.2, "k|", markersize=10, label="training, Du et al. 2024")
    ax.set_yticks(rows, shown["class_name"])
    ax.invert_yaxis()
    ax.set_xlabel("images")
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False, title=title)
    return figure


def categories(classes: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Put the study's classes beside Du et al. 2024, Table 1: ``published`` is the paper's count, NaN for other classes.

    Args:
        classes: label, class_id, class_name, train_images, test_images.
        published: wnid and n of the paper.
    """
    counts = published.set_index("wnid")["n"]
    return classes.assign(published=classes["class_id"].map(counts).astype(float))


def images_chosen(data: StudyData) -> pd.DataFrame:
    """Which images a study rests on, in one row: their fingerprint, side in pixels, and numbers of classes and images of each split."""
    numbers = {"classes": len(data.classes), "train_images": len(data.train), "test_images": len(data.test)}
    return pd.DataFrame([{"fingerprint": data.fingerprint, "image_size": data.train.images.shape[-1], **numbers}])


def data_found(data: StudyData, table1: pd.DataFrame) -> str:
    """Sentence on how many images of how many classes there are, and how the counts stand to the paper's."""
    text = (
        f"**{count(len(data.train), 'training image')}** with a box and **{count(len(data.test), 'test image')}** "
        f"of {count(len(data.classes), 'class')}; fingerprint of the data: `{data.fingerprint}`."
    )
    theirs = table1.dropna(subset="published")
    if not len(theirs):
        return text + " None of these classes is one of the paper's 20 ImageNet classes, so its counts do not apply."
    equal = int((theirs["published"] == theirs["train_images"]).sum())
    return text + (
        f" {equal} of {count(len(theirs), 'class')} shared with the paper have its number of images "
        f"({theirs['train_images'].sum():,.0f} here, {theirs['published'].sum():,.0f} there)."
    )


def class_sizes(classes: pd.DataFrame) -> str:
    """Sentence on how evenly the images are spread over the classes."""
    train = classes.set_index("class_name")["train_images"]
    if train.nunique() == 1:
        return f"Every class has {count(int(train.iloc[0]), 'training image')}."
    return (
        f"The smallest class is {train.idxmin()} with {count(int(train.min()), 'training image')}, the largest {train.idxmax()} "
        f"with {int(train.max()):,}: a factor of {train.max() / train.min():.1f}."
    )


def box_sizes(images: ImageSet) -> str:
    """Sentence on how much of an image the boxes take, and what a network that looks everywhere would score."""
    x0, y0, x1, y1 = images.boxes.double().unbind(-1)
    side = images.images.shape[-1]
    share = ((x1 - x0) * (y1 - y0)).amax(1).numpy() / side**2
    several = int(((x1 > x0) & (y1 > y0)).sum(1).gt(1).sum())
    low, middle, high = np.percentile(share, [10, 50, 90])
    return (
        f"The largest box of an image takes {percent(middle)} of it in the median "
        f"(10th to 90th percentile: {percent(low)} to {percent(high)}); "
        f"{count(several, 'image')} of {len(images):,} have more than one. A map that covers the whole image has an IoU of "
        f"{share.mean():.3f} on average, the floor that a measure of where a network looks must be read against."
    )


def faults_found(faults: pd.DataFrame) -> str:
    """Sentence on what is wrong in the data, most frequent first."""
    if not len(faults):
        return "Nothing was found wrong: every image could be read and every box lies inside its image."
    kinds = faults["fault"].value_counts()
    return f"{count(len(faults), 'fault')}: " + ", ".join(f"{number:,} × {kind.replace('_', ' ')}" for kind, number in kinds.items()) + "."


@style()
def images_with_boxes(images: Tensor, boxes: Tensor, titles: Sequence[str], columns: int = 5) -> Figure:
    """Draw images with the outline of their boxes.

    Args:
        images: (N, 3, S, S) uint8.
        boxes: (N, B, 4) half-open pixels; zero rows are padding.
        titles: one per image.
        columns: images per row.
    """
    if not len(images):
        return nothing_to_draw("There is no image to draw.")
    rows = -(-len(images) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1.8 * columns, 2.05 * rows), layout="constrained", squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, image, box, title in zip(axes.flat, images, boxes, titles, strict=False):
        _show(ax, image)
        _boxes(ax, box)
        ax.set_title(fill(title, 22), fontsize="small")
    return figure
