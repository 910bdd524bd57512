"""The numbers printed in Du, Zhou and Dai 2024, as tables, to stand beside ours."""

import pandas as pd

CITATION = (
    "Du, A.; Zhou, Q.; Dai, Y. Methodology for Evaluating the Generalization of ResNet. Applied Sciences 2024, 14, 3951. "
    "2,000 ResNets of 4 architectures on 20 ImageNet classes."
)
THRESHOLDS = (0.95, 0.90, 0.85, 0.80)
ARCHITECTURES = ("resnet18", "resnet34", "resnet50", "resnet101")
TOTAL = "Total"

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
    "architecture": ARCHITECTURES,
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
    return [{**fixed, "threshold": threshold, column: value} for threshold, value in zip(THRESHOLDS, values, strict=True)]


def _by_architecture(table: tuple[tuple[float, ...], ...], column: str, **fixed: str) -> list[dict[str, str | float]]:
    rows = zip((*ARCHITECTURES, TOTAL), table, strict=True)
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
    return pd.DataFrame({"method": "iou", "architecture": [*ARCHITECTURES, TOTAL], "pearson_r": _RANDOM})


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
