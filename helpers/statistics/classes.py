"""Overlap, accuracies and gap of single classes, over the networks of a study."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray


def class_table(
    names: Sequence[str],
    labels: ArrayLike,
    values: Mapping[str, NDArray],
    test_labels: ArrayLike,
    test_correct: NDArray,
) -> pd.DataFrame:
    """Overlap, accuracies and gap of each class, as means over networks.

    Args:
        names: of the classes, in the order of their labels.
        labels: (N,) of the scored training images.
        values: (models, N) by name: "train_accuracy" of 0 and 1, and any measure of
            single images, such as "iou". NaN where an image has none.
        test_labels: (T,) of the test images.
        test_correct: (models, T) of 0 and 1; rows of NaN for networks whose predictions
            are not recorded, which are left out of the test accuracy and of the gap.

    Returns:
        A row per class, the largest gap first: class, images, a column per name of
        ``values``, test_images, test_accuracy, networks_tested, and gap, which is
        training minus test accuracy of the networks that were tested. NaN without.
    """
    labels = np.asarray(labels)
    test_labels = np.asarray(test_labels)
    is_tested = np.isfinite(test_correct).all(axis=1)  # (models,)
    rows = []
    for label, name in enumerate(names):
        images = labels == label
        test_images = test_labels == label
        row = {"class": name, "images": int(images.sum())}
        row |= {key: _mean(array[:, images]) for key, array in values.items()}
        row["test_images"] = int(test_images.sum())
        row["test_accuracy"] = _mean(test_correct[is_tested][:, test_images])
        row["networks_tested"] = int(is_tested.sum())
        training = _mean(values["train_accuracy"][is_tested][:, images])
        row["gap"] = training - row["test_accuracy"]
        rows.append(row)
    return pd.DataFrame(rows).sort_values(
        "gap", ascending=False, kind="stable", ignore_index=True
    )


def _mean(values: NDArray) -> float:
    """Mean of the finite values; NaN where there are none."""
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else np.nan


def equal_numbers(groups: pd.Series, seed: int) -> pd.Series:
    """A mask with equally many rows of each group, drawn once.

    Args:
        groups: such as the architecture of each network.
        seed: of the draw.

    Returns:
        True for as many rows of each group as the smallest has.
    """
    order = np.random.default_rng(seed).permutation(len(groups))
    shuffled = groups.iloc[order]
    rank = shuffled.groupby(shuffled).cumcount()  # 0, 1, ... in each group
    fewest = groups.value_counts().min()
    return (rank < fewest).reindex(groups.index)
