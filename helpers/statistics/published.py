"""The numbers printed in Du et al. 2024, Schiff et al. 2021 and Huang et al. 2025, as tables, to stand beside ours."""

import pandas as pd

DU2024_CITATION = (
    "Du, A.; Zhou, Q.; Dai, Y. Methodology for Evaluating the Generalization of ResNet. Applied Sciences 2024, 14, 3951. "
    "2,000 ResNets of 4 architectures on 20 ImageNet classes."
)


PUBLISHED_THRESHOLDS = (0.95, 0.90, 0.85, 0.80)


PUBLISHED_ARCHITECTURES = ("resnet18", "resnet34", "resnet50", "resnet101")


PUBLISHED_TOTAL = "Total"


_CLASSES = (
    ("n03476684", "hair slide", 579),
    ("n02100236", "German short-haired pointer", 493),
    ("n02526121", "eel", 500),
    ("n02892767", "brassiere", 487),
    ("n01518878", "ostrich", 512),
    ("n04040759", "radiator", 450),
    ("n03372029", "flute", 533),
    ("n02129604", "tiger", 542),
    ("n02233338", "cockroach", 562),
    ("n04273569", "speedboat", 504),
    ("n04235860", "sleeping bag", 486),
    ("n01882714", "koala", 560),
    ("n01644373", "tree frog", 683),
    ("n02108551", "Tibetan mastiff", 859),
    ("n02101006", "Gordon setter", 925),
    ("n02097209", "standard schnauzer", 450),
    ("n01749939", "green mamba", 472),
    ("n02066245", "grey whale", 421),
    ("n07693725", "bagel", 545),
    ("n04560804", "water jug", 610),
)


_GRID = {
    "batch_size": (16, 32, 64),
    "learning_rate": (1.25e-1, 1.25e-3, 1.25e-5),
    "optimizer": ("adam", "sgd"),
    "weight_decay": (0.0, 2e-4, 5e-4),
    "architecture": PUBLISHED_ARCHITECTURES,
    "augmentation": (True, False),
    "pretrained": (True, False),
}


# Pearson r, a row per architecture, a column per threshold.
_CORRELATIONS = {
    "iou": (
        (-0.9144, -0.9096, -0.8996, -0.8911),
        (-0.8273, -0.8252, -0.8183, -0.8149),
        (-0.8171, -0.8129, -0.8125, -0.8054),
        (-0.8571, -0.8540, -0.8523, -0.8520),
        (-0.8248, -0.8228, -0.8200, -0.8159),
    ),
    "iou_b": (
        (-0.8587, -0.8556, -0.8466, -0.8358),
        (-0.8207, -0.8205, -0.8139, -0.8085),
        (-0.8140, -0.8135, -0.8131, -0.8040),
        (-0.8426, -0.8417, -0.8402, -0.8399),
        (-0.8110, -0.8116, -0.8070, -0.8005),
    ),
    "effective_invariance": (
        (-0.6577, -0.6550, -0.6539, -0.6462),
        (-0.7316, -0.7339, -0.7324, -0.7303),
        (-0.7676, -0.7638, -0.7642, -0.7614),
        (-0.7963, -0.8021, -0.8056, -0.8076),
        (-0.7413, -0.7419, -0.7425, -0.7398),
    ),
    "nuclear_norm": (
        (-0.3243, -0.2874, -0.2793, -0.2273),
        (-0.4963, -0.4934, -0.4695, -0.4432),
        (-0.5610, -0.5478, -0.5063, -0.4649),
        (-0.5707, -0.5599, -0.5211, -0.489),  # three digits in print
        (-0.4668, -0.4554, -0.4357, -0.3898),
    ),
    "spectral_norm": (
        (0.0592, 0.0330, 0.0429, 0.0451),
        (0.0579, 0.0324, 0.0421, 0.0424),
        (0.0574, 0.0322, 0.0416, 0.0410),
        (0.0574, 0.0323, 0.0417, 0.0401),
        (0.0204, 0.0198, 0.0195, 0.0195),
    ),
}


_PAIRWISE = (
    (76.10, 75.74, 75.14, 74.67),
    (73.81, 73.25, 72.83, 72.57),
    (72.78, 72.30, 72.01, 71.71),
    (76.67, 76.28, 76.00, 75.77),
    (74.36, 74.18, 73.97, 73.82),
)


_RANDOM = (-0.1544, 0.1820, 0.2246, -0.0585, -0.0094)


_GRAD_CAM_PLUS_PLUS = (-0.9127, -0.9105, -0.9004, -0.8879)


_SMOOTH_GRAD_CAM_PLUS_PLUS = (-0.8872, -0.8873, -0.8731, -0.8582)


_SALIENCY = (-0.8465, -0.8425, -0.8322, -0.8215)


def _by_threshold(values: tuple[float, ...], column: str, **fixed: str) -> list[dict[str, str | float]]:
    return [{**fixed, "threshold": threshold, column: value} for threshold, value in zip(PUBLISHED_THRESHOLDS, values, strict=True)]


def _by_architecture(table: tuple[tuple[float, ...], ...], column: str, **fixed: str) -> list[dict[str, str | float]]:
    rows = zip((*PUBLISHED_ARCHITECTURES, PUBLISHED_TOTAL), table, strict=True)
    return [row for architecture, values in rows for row in _by_threshold(values, column, **fixed, architecture=architecture)]


def du2024_table1() -> pd.DataFrame:
    """The 20 ImageNet classes: wnid, name and n, the number of training images with a box; Du et al. 2024, Table 1."""
    return pd.DataFrame(_CLASSES, columns=["wnid", "name", "n"])


def du2024_table2() -> pd.DataFrame:
    """The grid: hyperparameter, levels (as text, comma separated) and count of levels; Du et al. 2024, Table 2.

    The product of the counts is 864 configurations; of the models trained on them the paper keeps 2,000.
    """
    rows = [{"hyperparameter": name, "levels": ", ".join(map(str, levels)), "count": len(levels)} for name, levels in _GRID.items()]
    return pd.DataFrame(rows)


def du2024_table3() -> pd.DataFrame:
    """Correlation of each measure with the gap; Du et al. 2024, Table 3.

    Returns:
        One row per method, architecture ("Total" pools them) and threshold (models with a training accuracy above this fraction),
        with pearson_r in [-1, 1]: towards -1 is better, but for spectral_norm, a complexity, towards +1.
    """
    return pd.DataFrame([row for method, table in _CORRELATIONS.items() for row in _by_architecture(table, "pearson_r", method=method)])


def du2024_table4() -> pd.DataFrame:
    """How often IoU picks the better of two models: method, architecture, threshold, accuracy_percent; Du et al. 2024, Table 4."""
    return pd.DataFrame(_by_architecture(_PAIRWISE, "accuracy_percent", method="iou"))


def du2024_table5() -> pd.DataFrame:
    """Correlation of IoU with the gap among untrained networks, 50 per architecture: method, architecture, pearson_r; Table 5.

    They should be near 0: an overlap without learning must tell nothing.
    """
    return pd.DataFrame({"method": "iou", "architecture": [*PUBLISHED_ARCHITECTURES, PUBLISHED_TOTAL], "pearson_r": _RANDOM})


def du2024_table6() -> pd.DataFrame:
    """Correlation of IoU by CAM method on ResNet-18: method, architecture, threshold, pearson_r; Du et al. 2024, Table 6.

    The row of Grad-CAM is that of Table 3.
    """
    methods = {
        "grad_cam": _CORRELATIONS["iou"][0],
        "grad_cam_plus_plus": _GRAD_CAM_PLUS_PLUS,
        "smooth_grad_cam_plus_plus": _SMOOTH_GRAD_CAM_PLUS_PLUS,
    }
    return pd.DataFrame(
        [row for name, values in methods.items() for row in _by_threshold(values, "pearson_r", method=name, architecture="resnet18")]
    )


def du2024_table7() -> pd.DataFrame:
    """Correlation of IoU on ResNet-18 with saliency masks in place of boxes: method, architecture, threshold, pearson_r; Table 7.

    The row of the annotated boxes is that of Table 3.
    """
    methods = {"annotated_boxes": _CORRELATIONS["iou"][0], "saliency_masks": _SALIENCY}
    return pd.DataFrame(
        [row for name, values in methods.items() for row in _by_threshold(values, "pearson_r", method=name, architecture="resnet18")]
    )


HUANG2025_CITATION = (
    "Huang, M.; Yu, H.; Zhang, J. A practical generalization metric for deep networks benchmarking. Scientific Reports 2025, 15, 9747. "
    "5 CLIP ResNets and 8 EfficientNets on ImageNet and CIFAR-100."
)


PUBLISHED_FAMILIES = ("clip", "efficientnet")


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


SCHIFF2021_CITATION = (
    "Schiff, Quanz, Das and Chen 2021, Predicting Deep Neural Network Generalization with Perturbation Response Curves, NeurIPS"
)


# The slide prints eight model columns; that the second and third are CIFAR-10 and SVHN is read off the order of its header.
TASKS = ("CIFAR-10 VGG", "CIFAR-10 NiN", "SVHN NiN", "CINIC-10 w/bn", "CINIC-10 w/o bn", "Flowers NiN", "Pets NiN", "Fashion VGG")


_SCORES = {
    "gi_score (inter input)": (3.03, 34.34, 26.58, 21.01, 6.96, 33.05, 18.46, 4.48, 18.49),
    "gi_score (inter first layer)": (7.88, 22.59, 12.17, 12.58, 8.39, 7.52, 4.68, 16.16, 11.49),
    "pal_score (inter input)": (3.14, 26.39, 24.25, 21.11, 6.37, 29.62, 15.96, 4.21, 16.38),
    "pal_score (inter first layer)": (7.31, 12.75, 9.79, 12.09, 7.71, 6.37, 3.46, 14.13, 9.20),
    "gi_score": (0.84, 30.54, 41.75, 22.97, 11.46, 42.44, 16.21, 5.10, 21.41),
    "gi_score (intra first layer)": (0.22, 17.18, 10.96, 9.50, 12.43, 6.92, 3.60, 5.55, 8.29),
    "pal_score": (0.61, 24.36, 31.82, 24.15, 11.01, 38.10, 14.04, 5.12, 18.65),
    "pal_score (intra first layer)": (0.44, 10.34, 13.48, 8.68, 11.09, 5.88, 3.02, 6.25, 7.40),
    "mixup_accuracy": (0.03, 14.18, 22.75, 30.30, 19.51, 35.30, 9.99, 7.75, 17.48),
    "mixup_accuracy (first layer)": (2.24, 2.88, 12.11, 4.23, 4.84, 0.03, 0.13, 0.19, 3.33),
    "pca_gi_mixup": (0.04, 33.16, 38.08, 33.76, 20.33, 40.06, 13.19, 10.30, 23.62),
    "pal_product": (1.71, 35.77, 41.58, 25.14, 9.50, 38.92, 18.41, 5.61, 22.08),
    "pal_sum": (24.84, 29.70, 14.04, 1.64, 3.45, 14.84, 2.13, 4.89, 11.94),
    "dbi_times_mixup": (0.00, 25.86, 32.05, 31.79, 15.92, 43.99, 12.59, 9.24, 21.43),
}


_SETS = ("CIFAR-10 ResNet", "CIFAR-10 VGG", "SVHN ResNet", "SVHN VGG")


_PREDICTORS = ("accuracy under augmentation", "mean of the curve", "Gi-score")


_INVARIANCE = {
    "rotation": ((27.99, 16.99, 47.24, 42.97), (27.61, 15.61, 48.14, 44.05), (41.54, 15.29, 54.11, 46.11)),
    "horizontal translation": ((41.79, 33.48, 29.49, 24.20), (45.03, 33.00, 29.88, 24.28), (50.07, 34.31, 34.56, 25.94)),
    "vertical translation": ((26.79, 35.68, 51.88, 50.98), (26.55, 37.33, 52.39, 52.22), (34.85, 39.07, 59.02, 52.83)),
    "colour jitter": ((35.77, 28.44, 43.08, 30.07), (39.12, 29.37, 43.26, 28.67), (44.63, 30.79, 50.08, 29.45)),
}


def pgdl_scores() -> pd.DataFrame:
    """Scores of the competition (100 times the conditional mutual information): measure, a column per task, published_average.

    The measures are named as the columns of this workbook's scores.
    """
    columns = [*TASKS, "published_average"]
    return pd.DataFrame.from_dict(_SCORES, orient="index", columns=columns).rename_axis("measure").reset_index()


def invariance_scores() -> pd.DataFrame:
    """Scores of three predictors of a network's robustness to a perturbation: perturbation, predictor, a column per set of networks."""
    rows = [
        {"perturbation": perturbation, "predictor": predictor} | dict(zip(_SETS, values, strict=True))
        for perturbation, table in _INVARIANCE.items()
        for predictor, values in zip(_PREDICTORS, table, strict=True)
    ]
    return pd.DataFrame(rows)
