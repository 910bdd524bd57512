import numpy as np
import pytest

from helpers.data.images import load_study_data
from tests.conftest import TINY_SCENES

SSIM = np.linspace(0.6, 1, 9).round(2)
UNSEEN = np.array([n / (50 + n) for n in range(0, 60, 10)])
WEIGHTS = np.array([5.3, 7.8, 9.2, 12, 19, 30, 43, 66]) * 1e6


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache"))


def grid_of_total(total, *levels):
    """Levels, and six unequal statistics that sum to ``total``, (S, U, W, 6)."""
    parts = np.arange(1, 7) / 21
    return list(levels or (SSIM, UNSEEN, WEIGHTS)), np.multiply.outer(total, parts)


def uneven_grid(seed, noise=0.1):
    """The error falls with SSIM and size, rises with unseen classes, and is uneven."""
    x, u, z = np.meshgrid(SSIM, UNSEEN, np.arange(8) / 7, indexing="ij")
    bumps = np.random.default_rng(seed).normal(0, noise, x.shape)
    return grid_of_total(3 - 1.5 * x + 1.2 * u - 0.4 * z + bumps)
