"""The numbers printed in Du et al. 2024, Schiff et al. 2021 and Huang et al. 2025, as tables, to stand beside ours.

They lie as CSV in ``published/``, one file a table of print; ``sources.csv`` says where each stands and how it was read.
"""

from pathlib import Path

import pandas as pd

_FOLDER = Path(__file__).parent / "published"


def published_table(name: str) -> pd.DataFrame:
    """The numbers of one table of print.

    Raises:
        ValueError: there is no such table; the message lists those that there are.
    """
    path = _FOLDER / f"{name}.csv"
    known = sorted(item.stem for item in _FOLDER.glob("*.csv"))
    if name not in known:
        raise ValueError(f"no published table is called {name!r}; there are {', '.join(known)}")
    return pd.read_csv(path)


def du2024_table1() -> pd.DataFrame:
    """The 20 ImageNet classes: wnid, name and n, the number of training images with a box; Du et al. 2024, Table 1."""
    return published_table("du2024_table1")


def du2024_table2() -> pd.DataFrame:
    """The grid: hyperparameter, levels (as text, comma separated) and count of levels; Du et al. 2024, Table 2.

    The product of the counts is 864 configurations; of the models trained on them the paper keeps 2,000.
    """
    return published_table("du2024_table2")


def du2024_table3() -> pd.DataFrame:
    """Correlation of each measure with the gap: method, architecture, threshold, pearson_r; Du et al. 2024, Table 3.

    The threshold is a training accuracy, a fraction, above which models count. Towards -1 is better, but for the spectral norm, a
    complexity of which the number itself is correlated and not its logarithm, towards +1.
    """
    return published_table("du2024_table3")


def du2024_table4() -> pd.DataFrame:
    """How often IoU picks the better of two models: method, architecture, threshold, accuracy_percent; Du et al. 2024, Table 4."""
    return published_table("du2024_table4")


def du2024_table5() -> pd.DataFrame:
    """Correlation of IoU with the gap among untrained networks, 50 per architecture: method, architecture, pearson_r; Table 5."""
    return published_table("du2024_table5")


def du2024_table6() -> pd.DataFrame:
    """Correlation of IoU by CAM method on ResNet-18: method, architecture, threshold, pearson_r; Table 6, Grad-CAM's row from Table 3."""
    return published_table("du2024_table6")


def du2024_table7() -> pd.DataFrame:
    """Correlation of IoU on ResNet-18, saliency masks in place of boxes: method, architecture, threshold, pearson_r; Tables 7 and 3."""
    return published_table("du2024_table7")


def huang2025_table1() -> pd.DataFrame:
    """The networks and their size: family, model, weights_millions; Huang et al. 2025, Table 1, numbers from the authors' code."""
    return published_table("huang2025_table1")


def huang2025_table2() -> pd.DataFrame:
    """The trade-off points; Huang et al. 2025, Table 2.

    Returns:
        One row per dataset and family: generalization_bound and diversity_bound (mean error and mean Kappa loss at the point, lower is
        better), ssim, of which lower tolerates more noise, unseen_fraction of the classes in [0, 0.5], weights_millions.
    """
    return published_table("huang2025_table2")


def huang2025_table3() -> pd.DataFrame:
    """Sign-error of the three best complexity measures; Huang et al. 2025, Table 3.

    Returns:
        One row per measure, dataset, axis of the slice ("unseen_fraction" or "ssim") and statistic ("error_mean" or
        "error_10th_percentile"): sign_error in [0, 1], 0 consistent, 0.5 chance, 1 reversed; p_value, of which the paper prints one per
        dataset and axis, and names no test.

    8 networks without ties allow multiples of 1/28 only; 18 of the 24 values are such, the other 6 are given as printed.
    """
    return published_table("huang2025_table3")


def pgdl_scores() -> pd.DataFrame:
    """Scores of the competition (100 times the conditional mutual information): measure, a column per task, published_average.

    The measures are named as the columns of this workbook's scores.
    """
    return published_table("schiff2021_pgdl")


def invariance_scores() -> pd.DataFrame:
    """Scores of three predictors of a network's robustness to a perturbation: perturbation, predictor, a column per set of networks."""
    return published_table("schiff2021_invariance")
