"""Agreement of networks on images without labels, by which they are ordered."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def agreement(predicted: ArrayLike) -> NDArray[np.float64]:
    """Share of images on which a network predicts as each other one does, averaged.

    ``mean over j != i of mean over x of [argmax z_i(x) = argmax z_j(x)]``. The more
    accurate of several networks agree more with the others; Jiang, Nagarajan, Baek and
    Kolter 2022, Baek et al. 2022. It fails where networks make the same mistakes.

    Args:
        predicted: (K, N) predicted class of each network for each image.

    Returns:
        (K,) in [0, 1]; NaN for a single network, and without images.

    Example:
        >>> agreement([[0, 1, 2, 2], [0, 1, 2, 0], [0, 0, 2, 0]])
        array([0.625, 0.75 , 0.625])
    """
    predicted = np.asarray(predicted)
    count, images = predicted.shape
    if count < 2 or not images:
        return np.full(count, np.nan)
    # One network at a time: a table of all pairs and images would not fit into memory.
    with_all = [(predicted == one).mean() for one in predicted]
    return (np.array(with_all) * count - 1) / (count - 1)
