"""Correlation of the overlap with the gap under each choice of notebook 05.

A choice is columns of the scores. In the part "closed" are methods with a closed form,
whose maps take one forward pass: all images, at the last stage and the study's image
size. In the part "sampled" are methods that need gradients or many passes, further
stages and image sizes, and Grad-CAM beside them: a sample of the images.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.cams import localize
from helpers.choices.compute import (
    ALL_IMAGES,
    ATTRIBUTED,
    BOXES,
    CLOSED,
    CLOSED_FORMS,
    CORRECT,
    COSTS,
    NO_CLASS,
    PREDICTED,
    SAMPLED,
    TRUE,
)
from helpers.scores.store import CHOICE, Records
from helpers.statistics.correlate import (
    CONFIGURATION,
    Bootstrap,
    correlations_in_draws,
    finite_mean,
    percentile_interval,
)
from helpers.statistics.gap_tables import (
    TOTAL,
    correlation_table,
    correlations,
)
from helpers.statistics.published import published_table
from helpers.statistics.reliability import reliability
from helpers.statistics.verdicts import verdict

PAPER_NETWORKS = 50  # untrained networks of an architecture
FEWEST_IMAGES = 5  # behind a mean
KEYS = ["part", "measure", *CHOICE]  # what makes a choice
# Values of single images, (models, images), by part, method and formula.
ImageValues = Mapping[tuple[str, str, str], ArrayLike]
_OF_BOXES = "annotated_boxes"  # in the paper's Table 7
_NORMAL_95 = 1.96  # half-width of a 95 % interval in standard errors


def scores_of(records: Records) -> pd.DataFrame:
    """Scores of all models under all choices, with ``KEYS``, n and value.

    Args:
        records: of the parts "closed" and "sampled".
    """
    tables = [records.scores(part) for part in (CLOSED, SAMPLED)]
    return pd.concat(tables, ignore_index=True)[["model_id", *KEYS, "n", "value"]]


def values_of_images(records: Records) -> dict[tuple[str, str, str], ArrayLike]:
    """IoU of single images by each CAM method at the paper's threshold.

    Args:
        records: of the parts "closed" and "sampled".

    Returns:
        (models, images) by part, method and formula.
    """
    of_images = {}
    for part in (CLOSED, SAMPLED):
        for name, values in records.of_images(part).items():
            _, method, formula = name.split(", ")
            of_images[part, method, formula] = values
    return of_images


def by_choice(
    bootstrap: Bootstrap,
    scores: pd.DataFrame,
    of_images: ImageValues | None = None,
    accuracies: Collection[float] = (),
) -> pd.DataFrame:
    """Correlate the score of each choice with the gap.

    A mean over fewer than ``FEWEST_IMAGES`` images is left out, such as over the few
    images that a network classifies wrongly.

    Args:
        bootstrap: of the models.
        scores: a row per model and choice, see ``scores_of``.
        of_images: values of single images in the order of the models. With them
            intervals draw scored images too; test images, behind the gap, are drawn for
            all.
        accuracies: training accuracies that models exceed; with them there is a row for
            each architecture and accuracy.

    Returns:
        A row per choice: ``KEYS``, images and mean (over the models), and its
        ``correlations``; with ``accuracies`` also architecture, and the training
        accuracy above which models are taken.
    """
    values = {"test_accuracy": bootstrap.images.get("test_accuracy")}
    columns = {}
    rows = []
    for key, choice in scores.groupby(KEYS, sort=False, dropna=False):
        name = f"choice {len(rows)}"
        of_models = choice.set_index("model_id").reindex(bootstrap.models["model_id"])
        enough = of_models["n"] >= FEWEST_IMAGES
        columns[name] = of_models["value"].where(enough).to_numpy(dtype=float)
        rows.append((name, *key, of_models["n"].median(), of_models["value"].mean()))
        way = choice[["part", "method", "formula"]].iloc[0]
        values[name] = (of_images or {}).get(tuple(way))
    values = {name: images for name, images in values.items() if images is not None}
    models = bootstrap.models.join(pd.DataFrame(columns, index=bootstrap.models.index))
    choices = pd.DataFrame(rows, columns=["column", *KEYS, "images", "mean"])
    of_choices = Bootstrap(models, values, bootstrap.draws, bootstrap.seed)
    if accuracies:
        table = correlation_table(of_choices, choices["column"], accuracies, tau=False)
        table = table.rename(columns={"measure": "column", "threshold": "above"})
        return table.merge(choices, on="column").drop(columns="column")
    table = correlations(of_choices, choices["column"])
    return choices.drop(columns="column").join(table.drop(columns="measure"))


def iou_of_boxes(scores: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """IoU of all images with boxes at the last stage and the study's image size.

    Args:
        scores: see ``scores_of``.
        threshold: of the map.
    """
    closed = scores[scores["part"] == CLOSED]
    return scores[
        (scores["measure"] == "iou")
        & (scores["threshold"] == threshold)
        & (scores["subset"] == ALL_IMAGES)
        & (scores["annotation"] == BOXES)
        & scores["layer"].isin(closed["layer"])
        & scores["image_size"].isin(closed["image_size"])
    ]


def cam_methods(
    bootstrap: Bootstrap,
    scores: pd.DataFrame,
    accuracies: Collection[float],
    of_images: ImageValues,
) -> pd.DataFrame:
    """The CAM methods beside those of Du et al. 2024, Table 6.

    With the correct formula and with torchcam's. Methods with a closed form are scored
    on all images, the others on a sample. Grad-CAM comes first, and is repeated on the
    sample where that has fewer images.

    Args:
        bootstrap: of the models.
        scores: of ``iou_of_boxes``.
        accuracies: training accuracies that models exceed.
        of_images: see ``values_of_images``.

    Returns:
        See ``by_choice``, with published_r and difference.
    """
    chosen = scores[scores["class_used"] != TRUE]
    ways = pd.MultiIndex.from_frame(chosen[["method", "formula"]])
    has_closed_form = ways.isin(CLOSED_FORMS)
    is_closed = chosen["part"] == CLOSED
    is_repeated = has_closed_form & ~is_closed
    if chosen.loc[~is_closed, "n"].max() < chosen.loc[is_closed, "n"].max():
        is_repeated &= ~ways.isin(CLOSED_FORMS[:1])
    chosen = pd.concat([chosen[is_closed], chosen[~is_closed & ~is_repeated]])
    table = by_choice(bootstrap, chosen, of_images, accuracies)
    return _beside(table, published_table("du2024_table6"))


def annotations(
    bootstrap: Bootstrap, scores: pd.DataFrame, accuracies: Collection[float]
) -> pd.DataFrame:
    """Annotated boxes beside masks by programs, as Du et al. 2024, Table 7.

    Args:
        bootstrap: of the models.
        scores: of Grad-CAM of the predicted class, of all images.
        accuracies: training accuracies that models exceed.

    Returns:
        See ``by_choice``, its method the maker of the annotation, with published_r of
        annotated boxes, or of the paper's saliency masks, and difference.
    """
    names = scores["annotation"].replace(BOXES, _OF_BOXES)
    table = by_choice(bootstrap, scores.assign(method=names), None, accuracies)
    published = published_table("du2024_table7")
    makers = dict.fromkeys(names, "saliency_masks") | {_OF_BOXES: _OF_BOXES}
    of_makers = [
        published[published["method"] == of_paper].assign(method=name)
        for name, of_paper in makers.items()
    ]
    return _beside(table, pd.concat(of_makers))


def _beside(table: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Rows beside the paper's r of their method."""
    names = {"threshold": "above", "pearson_r": "published_r"}
    published = published.rename(columns=names)
    keys = ["architecture", "above", "method"]
    beside = table.merge(published[[*keys, "published_r"]], how="left", on=keys)
    return beside.assign(difference=beside["pearson_r"] - beside["published_r"])


def attributions_compared(bootstrap: Bootstrap, records: Records) -> pd.DataFrame:
    """Correlate each score of each attribution with the gap, beside Grad-CAM's.

    Args:
        bootstrap: of the models of ``records``, in its order.
        records: of the part "attributed".

    Returns:
        A row per measure and method: images, n, mean over the models, reliability,
        r with its interval, minus_cam (r minus that of Grad-CAM on the same images, in
        the same draws) with its interval, ``COSTS`` per image, and the reason where
        there are no maps.
    """
    values = records.of_images(ATTRIBUTED)  # (models, images) by "<measure>, <method>"
    scores = records.scores(ATTRIBUTED)
    choices = list(product(localize.LESS_CHANCE, scores["method"].unique()))
    names = [f"{measure}, {method}" for measure, method in choices]
    models = bootstrap.models.assign(
        **{name: finite_mean(values[name].T) for name in names}
    )
    images = dict(bootstrap.images) | values
    of_attributions = Bootstrap(models, images, bootstrap.draws, bootstrap.seed)
    table = correlations(of_attributions, names)
    in_draws = correlations_in_draws(of_attributions, names)
    # For each choice the number of Grad-CAM's with the same measure.
    cams = [names.index(f"{measure}, grad_cam") for measure, _ in choices]
    low, high = percentile_interval(in_draws - in_draws[:, cams], table["cells"])
    table = pd.DataFrame(choices, columns=["measure", "method"]).assign(
        images=[values[name].shape[1] for name in names],
        mean=models[names].mean().to_numpy(),
        reliability=[reliability(values[name]) for name in names],
        **table.drop(columns="measure"),
        minus_cam=table["pearson_r"] - table["pearson_r"].to_numpy()[cams],
        minus_cam_low=low,
        minus_cam_high=high,
    )
    costs = scores[scores["measure"].isin(COSTS)]
    costs = costs.pivot_table("value", "method", "measure", "median")
    # A method has one reason; max skips the "" of models with maps, which sorts first.
    reasons = scores.groupby("method")["reason"].max()
    return table.merge(costs.join(reasons), left_on="method", right_index=True)


def validity(networks: pd.DataFrame, trained: Bootstrap) -> pd.DataFrame:
    """Correlate IoU with the gap among untrained networks; Du et al. 2024, Table 5.

    Args:
        networks: a row per network with its architecture, accuracies, gap and IoU.
        trained: bootstrap of the trained models.

    Returns:
        A row per architecture, last "Total", beside trained networks and the paper;
        published_low and published_high are Fisher's interval of 50 networks each.
    """
    # Each untrained network is drawn by itself.
    networks = networks.assign(cell=networks["model_id"])
    untrained = Bootstrap(networks, draws=trained.draws, seed=trained.seed)
    rows = []
    for name in [*networks["architecture"].unique(), TOTAL]:
        random_networks = _of_architecture(untrained, name)
        trained_networks = _of_architecture(trained, name)
        means = random_networks.models[["train_accuracy", "test_accuracy", "iou"]]
        row = {"architecture": name} | means.mean().to_dict()
        row |= correlations(random_networks, ["iou"]).iloc[0].to_dict()
        of_trained = correlations(trained_networks, ["iou"]).iloc[0]
        row |= {
            # The interval alone decides: the claim is that there is no correlation.
            "verdict": verdict(-1, row["ci_low"], row["ci_high"], 0.0, np.nan),
            "trained_n": len(trained_networks.models),
            "trained_r": of_trained["pearson_r"],
        }
        rows.append(row)
    table = pd.DataFrame(rows).drop(columns="measure")
    return table.merge(_published_validity(), how="left", on="architecture")


def _of_architecture(bootstrap: Bootstrap, name: str) -> Bootstrap:
    """The models of an architecture, or all of them for ``TOTAL``."""
    if name == TOTAL:
        return bootstrap
    return bootstrap.subset(bootstrap.models["architecture"] == name)


def _published_validity() -> pd.DataFrame:
    """The paper's r among untrained networks, with Fisher's interval."""
    published = published_table("du2024_table5")[["architecture", "pearson_r"]]
    published = published.rename(columns={"pearson_r": "published_r"})
    is_total = published["architecture"] == TOTAL
    architectures = len(published) - 1
    networks = np.where(is_total, PAPER_NETWORKS * architectures, PAPER_NETWORKS)
    half_width = _NORMAL_95 / np.sqrt(networks - 3)
    centre = np.arctanh(published["published_r"])
    return published.assign(
        published_low=np.tanh(centre - half_width),
        published_high=np.tanh(centre + half_width),
    )


def shifts(
    bootstrap: Bootstrap, measures: Sequence[str], column: str, unit: Sequence[str]
) -> pd.DataFrame:
    """Change of measures where one column alone changes, such as label_noise.

    Args:
        bootstrap: of the models.
        measures: columns of the models; "gap" must be one.
        column: whose lowest level is compared with each other level.
        unit: columns that two models of a pair share.

    Returns:
        A row per further level and measure. change is the mean over pairs; shift is
        change divided by the standard deviation over the models of the lowest level;
        promised is r times the shift of the gap, the shift that the correlation
        predicts; kept says whether both have the same direction, NaN where the interval
        of shift, of r or of the shift of the gap contains 0.
    """
    models = bootstrap.models
    levels = sorted(models[column].dropna().unique())
    is_lowest = models[column].isin(levels[:1])
    at_lowest = correlations(bootstrap.subset(is_lowest), measures)
    r = at_lowest[["pearson_r", "ci_low", "ci_high"]]
    r = r.set_axis(["r", "r_low", "r_high"], axis=1)
    values = models[list(measures)].astype(float)
    spread = values[is_lowest].std().replace(0, np.nan).to_numpy()
    numbers = models[[*unit, CONFIGURATION]].rename_axis("row").reset_index()
    tables = []
    for level in levels[1:]:
        pairs = numbers[is_lowest].merge(
            numbers[models[column] == level],
            on=list(unit),
            suffixes=("", "_moved"),
            validate="one_to_one",
        )
        array = values.to_numpy()
        change = array[pairs["row_moved"]] - array[pairs["row"]]  # (pairs, measures)
        of_pairs = Bootstrap(pairs, draws=bootstrap.draws, seed=bootstrap.seed)
        shift = of_pairs.mean(change / spread)
        columns: dict[str, Any] = {
            "measure": list(measures),
            "column": column,
            "level": str(level),
            "n": np.isfinite(change).sum(0),
            "change": finite_mean(change),
            "shift": shift[""],
            "ci_low": shift["_low"],
            "ci_high": shift["_high"],
        }
        tables.append(_with_promise(pd.DataFrame(columns).join(r)))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _with_promise(table: pd.DataFrame) -> pd.DataFrame:
    """Add the shifts that the correlations with the gap predict, and whether kept."""
    gap = table.set_index("measure").loc["gap"]
    promised = table["r"] * gap["shift"]
    is_kept = (np.sign(table["shift"]) == np.sign(promised)).astype(float)
    is_decided = (
        (table["ci_low"] * table["ci_high"] > 0)
        & (table["r_low"] * table["r_high"] > 0)
        & (gap["ci_low"] * gap["ci_high"] > 0)
    )
    return table.assign(promised=promised, kept=is_kept.where(is_decided))


_METHODS = {
    "grad_cam": "Grad-CAM",
    "grad_cam_plus_plus": "Grad-CAM++",
    "smooth_grad_cam_plus_plus": "Smooth Grad-CAM++",
    "layer_cam": "Layer-CAM",
    "eigen_cam": "Eigen-CAM",
    "score_cam": "Score-CAM",
    "guided_grad_cam": "guided Grad-CAM",
    "grab_cut": "GrabCut",
}


def method_title(method: str, formula: str = "") -> str:
    """Name of a CAM method or a provider of masks, as reports write it.

    Args:
        method: of CAM, or provider of masks.
        formula: of the method; "" where there is only one.

    Example:
        >>> method_title("grad_cam_plus_plus", "torchcam")
        'Grad-CAM++ by torchcam'
    """
    name = _METHODS.get(method, method.replace("_", " "))
    return f"{name} by torchcam" if formula == "torchcam" else name


def titles(table: pd.DataFrame) -> list[str]:
    """Name of each choice: method and number of images.

    Args:
        table: of ``by_choice``.
    """
    return [
        f"{method_title(row.method, row.formula)}, {row.images:,.0f} images"
        for row in table.itertuples()
    ]


def changed(table: pd.DataFrame, paper: Mapping[str, Any]) -> pd.Series:
    """What differs from the paper's choice, where it is one thing alone; else "".

    Args:
        table: of ``by_choice``.
        paper: its row of the paper's choice.
    """
    columns = {
        "CAM method": ["method", "formula"],
        "threshold of the map": ["threshold"],
        "class, or images": ["class_used", "subset"],
        "layer": ["layer"],
        "size of the images": ["image_size"],
        "annotation": ["annotation"],
    }
    differs = pd.DataFrame(
        {
            name: table[keys].ne(pd.Series(paper)[keys]).any(axis=1)
            for name, keys in columns.items()
        }
    )
    # Eigen-CAM explains no class, which is part of the method.
    differs.loc[table["class_used"] == NO_CLASS, "class, or images"] = False
    name = differs.idxmax(axis=1)
    is_one = (differs.sum(axis=1) == 1) & (table["measure"] == "iou")
    return name.where(is_one, "")


def paper_choice(table: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """The row of the paper's choice: IoU of Grad-CAM and boxes, on all images.

    Args:
        table: of ``by_choice``.
        threshold: of the map.
    """
    way = {
        "part": CLOSED,
        "measure": "iou",
        "method": "grad_cam",
        "formula": CORRECT,
        "class_used": PREDICTED,
        "annotation": BOXES,
        "subset": ALL_IMAGES,
        "threshold": threshold,
    }
    is_paper = table[list(way)].eq(pd.Series(way)).all(axis=1)
    return table[is_paper]
