"""The numbers of Huang, Yu and Zhang 2025, Tables 1 to 3, as tables, to stand beside ours."""

import pandas as pd

CITATION = (
    "Huang, M.; Yu, H.; Zhang, J. A practical generalization metric for deep networks benchmarking. Scientific Reports 2025, 15, 9747. "
    "5 CLIP ResNets and 8 EfficientNets on ImageNet and CIFAR-100."
)
FAMILIES = ("clip", "efficientnet")
DATASETS = ("imagenet", "cifar100")

# Millions, as the authors' code has them.
_WEIGHTS = {
    "clip": {"RN50": 38.0, "RN101": 56.0, "RN50x4": 87.0, "RN50x16": 167.0, "RN50x64": 420.0},
    "efficientnet": {
        "efficientnet_b0": 5.3,
        "efficientnet_b1": 7.8,
        "efficientnet_b2": 9.2,
        "efficientnet_b3": 12.0,
        "efficientnet_b4": 19.0,
        "efficientnet_b5": 30.0,
        "efficientnet_b6": 43.0,
        "efficientnet_b7": 66.0,
    },
}

# Generalization bound, diversity bound, SSIM, unseen fraction, weights in millions.
_TRADE_OFF = {
    ("imagenet", "clip"): (0.279, 0.276, 0.874, 0.285, 116.0),
    ("imagenet", "efficientnet"): (0.284, 0.280, 0.805, 0.295, 20.0),
    ("cifar100", "clip"): (0.657, 0.668, 0.949, 0.182, 163.0),
    ("cifar100", "efficientnet"): (0.600, 0.608, 0.937, 0.258, 22.0),
}

_COLUMNS = (("imagenet", "unseen_fraction"), ("cifar100", "unseen_fraction"), ("imagenet", "ssim"), ("cifar100", "ssim"))
# A pair per column: against the mean error (the paper's bound), against its 10th percentile.
_SIGN_ERRORS = {
    "INVERSE_MARGIN": ((0.428571, 0.321429), (0.500000, 0.464286), (0.285714, 0.142857), (0.466667, 0.321429)),
    "LOG_SUM_OF_FRO": ((0.247638, 0.163783), (0.642857, 0.607143), (0.714286, 0.821429), (0.166667, 0.285714)),
    "PARAM_NORM": ((0.366667, 0.392857), (0.714286, 0.678571), (0.785714, 0.892857), (0.10, 0.357143)),
}
_P_VALUES = (4.718e-10, 8.786e-10, 1.207e-10, 1.504e-10)


def huang2025_table1() -> pd.DataFrame:
    """The networks and their size: family, model, weights_millions; Huang et al. 2025, Table 1, numbers from the authors' code."""
    rows = [(family, model, millions) for family, sizes in _WEIGHTS.items() for model, millions in sizes.items()]
    return pd.DataFrame(rows, columns=["family", "model", "weights_millions"])


def huang2025_table2() -> pd.DataFrame:
    """The trade-off points; Huang et al. 2025, Table 2.

    Returns:
        One row per dataset and family: generalization_bound and diversity_bound (mean error and mean Kappa loss at the point, lower is
        better), ssim, of which lower tolerates more noise, unseen_fraction of the classes in [0, 0.5], weights_millions.
    """
    names = ["dataset", "family", "generalization_bound", "diversity_bound", "ssim", "unseen_fraction", "weights_millions"]
    return pd.DataFrame([(*key, *values) for key, values in _TRADE_OFF.items()], columns=names)


def huang2025_table3() -> pd.DataFrame:
    """Sign-error of the three best complexity measures; Huang et al. 2025, Table 3.

    Returns:
        One row per measure, dataset, axis of the slice ("unseen_fraction" or "ssim") and statistic ("error_mean" or
        "error_10th_percentile"): sign_error in [0, 1], 0 consistent, 0.5 chance, 1 reversed; p_value, of which the paper prints one per
        dataset and axis, and names no test.

    8 networks without ties allow multiples of 1/28 only; 18 of the 24 values are such, the other 6 are given as printed.
    """
    rows = [
        {"measure": measure, "dataset": dataset, "axis": axis, "statistic": statistic, "sign_error": value, "p_value": p_value}
        for measure, columns in _SIGN_ERRORS.items()
        for (dataset, axis), values, p_value in zip(_COLUMNS, columns, _P_VALUES, strict=True)
        for statistic, value in zip(("error_mean", "error_10th_percentile"), values, strict=True)
    ]
    return pd.DataFrame(rows)
