"""The tables of Schiff, Quanz, Das and Chen 2021, to stand beside ours, as printed on the slides of the paper."""

import pandas as pd

CITATION = "Schiff, Quanz, Das and Chen 2021, Predicting Deep Neural Network Generalization with Perturbation Response Curves, NeurIPS"

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
