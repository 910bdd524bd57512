"""Correlation of the overlap with the gap under each choice of notebook 05.

A choice is columns of the scores. In the part "closed" are methods with a closed form,
whose maps take one forward pass: all images, at the last stage and the study's image
size. In the part "sampled" are methods that need gradients or many passes, further
stages and image sizes, and Grad-CAM beside them: a sample of the images. In the part
"attributed" are attributions by Captum, of the same sample.
"""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from helpers.cams import localize
from helpers.choices.compute import (
    ATTRIBUTED,
    BOXES,
    CLOSED,
    CLOSED_FORMS,
    NO_CLASS,
    name_of_images,
)
from helpers.scores.store import Records
from helpers.scores.values import CHOICE
from helpers.statistics.correlate import (
    Bootstrap,
    correlations_in_draws,
    percentile_interval,
)
from helpers.statistics.gap_tables import (
    TOTAL,
    correlation_table,
    correlations,
    reliability,
)
from helpers.statistics.pairs import paired_difference
from helpers.statistics.published import published_table
from helpers.statistics.verdicts import verdict

FEWEST_IMAGES = 5  # behind a mean
KEYS = ["part", "measure", *CHOICE]  # what makes a choice
NOTHING = "nothing"  # what differs from the paper's choice in that choice itself
METHOD = "CAM method"
ANNOTATION = "annotation"
THRESHOLD = "threshold of the map"
CLASS = "class, or images"
LAYER = "layer"
SIZE = "size of the images"
# What the columns of a choice decide.
_DECIDED = {
    "method": METHOD,
    "formula": METHOD,
    "threshold": THRESHOLD,
    "class_used": CLASS,
    "subset": CLASS,
    "layer": LAYER,
    "image_size": SIZE,
    "annotation": ANNOTATION,
}
_OF_BOXES = "annotated_boxes"  # in the paper's Table 7


def scores_of(records: Records, threshold: float) -> pd.DataFrame:
    """Scores of all models under all choices, and what a choice changes.

    Args:
        records: of ``compute.score_choices``.
        threshold: of the map, the paper's.

    Returns:
        A row per model and choice: model_id, ``KEYS``, n, value, and changed: what
        alone differs from the paper's choice, which is the IoU of Grad-CAM of the
        predicted class and boxes, on all images; "" where several things differ.
    """
    scores = records.scores()[["model_id", *KEYS, "n", "value"]]
    scores = scores[scores["part"] != ATTRIBUTED]
    at_threshold = scores["threshold"] == threshold
    of_paper = scores[at_threshold & (scores["part"] == CLOSED)].iloc[0]
    differs = scores[[*_DECIDED]].ne(of_paper[[*_DECIDED]])
    # Eigen-CAM explains no class, which is part of the method.
    differs.loc[scores["class_used"] == NO_CLASS, "class_used"] = False
    changes = differs.T.groupby(_DECIDED).any().T
    number = changes.sum(axis=1)
    changed = changes.idxmax(axis=1).where(number == 1, "").where(number > 0, NOTHING)
    return scores.assign(changed=changed.where(scores["measure"] == "iou", ""))


def by_choice(
    bootstrap: Bootstrap,
    scores: pd.DataFrame,
    accuracies: Collection[float] = (),
    records: Records | None = None,
) -> pd.DataFrame:
    """Correlate the score of each choice with the gap.

    A mean over fewer than ``FEWEST_IMAGES`` images is left out, such as over the few
    images that a network classifies wrongly.

    Args:
        bootstrap: of the models.
        scores: a row per model and choice, see ``scores_of``.
        accuracies: training accuracies that models exceed; with them there is a row for
            each architecture and accuracy.
        records: of ``compute.score_choices``, of the same models in their order. With
            them intervals draw scored images too; test images, behind the gap, are
            drawn for all.

    Returns:
        A row per choice: changed, ``KEYS``, images and mean (over the models), and its
        ``correlations``; with ``accuracies`` also architecture, and the training
        accuracy above which models are taken.
    """
    choices, of_choices = _columns(bootstrap, scores, records)
    if not accuracies:
        table = correlations(of_choices, choices["column"])
        return choices.drop(columns="column").join(table.drop(columns="measure"))
    table = correlation_table(of_choices, choices["column"], accuracies)
    table = table.rename(columns={"measure": "column", "threshold": "above"})
    return table.merge(choices, on="column").drop(columns=["column", "changed"])


def _columns(
    bootstrap: Bootstrap, scores: pd.DataFrame, records: Records | None
) -> tuple[pd.DataFrame, Bootstrap]:
    """The choices, and the models with a column for each, see ``by_choice``."""
    keys = ["changed", *KEYS]
    number = scores.groupby(keys, sort=False, dropna=False).ngroup()
    scores = scores.assign(column="choice " + number.astype(str))
    choices = scores.groupby(["column", *keys], sort=False, dropna=False)
    choices = choices.agg(images=("n", "median"), mean=("value", "mean")).reset_index()
    enough = scores[scores["n"] >= FEWEST_IMAGES]
    wide = enough.pivot(index="model_id", columns="column", values="value")
    wide = wide.reindex(bootstrap.models["model_id"], columns=choices["column"])
    models = pd.concat([bootstrap.models, wide.reset_index(drop=True)], axis=1)
    images = {k: v for k, v in bootstrap.images.items() if k == "test_accuracy"}
    for part in choices["part"].unique() if records else ():
        values = records.of_images(part)
        for row in choices[choices["part"] == part].itertuples():
            name = name_of_images(row.measure, row.method, row.formula)
            images[row.column] = values[name]
    return choices, Bootstrap(models, images, bootstrap.draws, bootstrap.seed)


def cam_methods(
    bootstrap: Bootstrap,
    scores: pd.DataFrame,
    accuracies: Collection[float],
    records: Records,
) -> pd.DataFrame:
    """The CAM methods beside those of Du et al. 2024, Table 6.

    With the correct formula and with torchcam's. Methods with a closed form are scored
    on all images, the others on a sample, and Grad-CAM on both.

    Args:
        bootstrap: of the models.
        scores: see ``scores_of``.
        accuracies: training accuracies that models exceed.
        records: of ``compute.score_choices``.

    Returns:
        See ``by_choice``, with published_r and difference.
    """
    ways = pd.MultiIndex.from_frame(scores[["method", "formula"]])
    is_repeated = (scores["part"] != CLOSED) & ways.isin(CLOSED_FORMS[1:])
    chosen = scores[scores["changed"].isin([NOTHING, METHOD]) & ~is_repeated]
    chosen = chosen.sort_values("part", kind="stable")
    table = by_choice(bootstrap, chosen, accuracies, records)
    return _beside(table, published_table("du2024_table6"))


def annotations(
    bootstrap: Bootstrap, scores: pd.DataFrame, accuracies: Collection[float]
) -> pd.DataFrame:
    """Annotated boxes beside masks by programs, as Du et al. 2024, Table 7.

    Args:
        bootstrap: of the models.
        scores: see ``scores_of``.
        accuracies: training accuracies that models exceed.

    Returns:
        See ``by_choice``, its method the maker of the annotation, with published_r of
        annotated boxes, or of the paper's saliency masks, and difference.
    """
    is_shown = scores["changed"].isin([NOTHING, ANNOTATION])
    chosen = scores[is_shown & (scores["part"] == CLOSED)]
    table = by_choice(bootstrap, chosen, accuracies)
    is_box = table["annotation"] == BOXES
    of_paper = np.where(is_box, _OF_BOXES, "saliency_masks")
    beside = _beside(table.assign(method=of_paper), published_table("du2024_table7"))
    return beside.assign(method=table["annotation"].mask(is_box, _OF_BOXES))


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
        records: of ``compute.score_choices``.

    Returns:
        A row per measure and method: measure, method, images, mean over the models,
        reliability, ``correlations``, and minus_cam (r minus that of Grad-CAM on the
        same images, in the same draws) with its interval.
    """
    scores = records.scores(ATTRIBUTED).assign(changed="")
    of_measures = scores.groupby("measure")
    scores = pd.concat(map(of_measures.get_group, localize.LESS_CHANCE))
    choices, of_choices = _columns(bootstrap, scores, records)
    names = choices["column"]
    table = choices[["measure", "method", "images", "mean"]].assign(
        reliability=[reliability(of_choices.images[name]) for name in names]
    )
    table = table.join(correlations(of_choices, names).drop(columns="measure"))
    # For each choice the row of Grad-CAM with the same measure, the first one.
    rows = pd.Series(table.index).groupby(table["measure"])
    cams = rows.transform("first").to_numpy()
    in_draws = correlations_in_draws(of_choices, names)
    low, high = percentile_interval(in_draws - in_draws[:, cams], table["cells"])
    return table.assign(
        minus_cam=table["pearson_r"] - table["pearson_r"].to_numpy()[cams],
        minus_cam_low=low,
        minus_cam_high=high,
    )


def validity(networks: pd.DataFrame, draws: int, seed: int) -> pd.DataFrame:
    """Correlate IoU with the gap among untrained networks; Du et al. 2024, Table 5.

    Args:
        networks: see ``compute.untrained_networks``.
        draws: of the bootstrap.
        seed: of the draws.

    Returns:
        A row per architecture, and "Total" of several, beside the paper.
    """
    # Each untrained network is drawn by itself.
    networks = networks.assign(cell=networks["model_id"])
    untrained = Bootstrap(networks, draws=draws, seed=seed)
    table = correlation_table(untrained, ["iou"], [-1.0])
    both = pd.concat([networks, networks.assign(architecture=TOTAL)])
    means = both.groupby("architecture")[["train_accuracy", "test_accuracy", "iou"]]
    table = table.drop(columns=["threshold", "measure"])
    table = means.mean().merge(table, how="right", on="architecture")
    ends = zip(table["ci_low"], table["ci_high"], strict=True)
    table = table.assign(
        # The interval alone decides: the claim is that there is no correlation.
        verdict=[verdict(low, high, 0.0, -1) for low, high in ends],
    )
    published = published_table("du2024_table5")[["architecture", "pearson_r"]]
    published = published.rename(columns={"pearson_r": "published_r"})
    return table.merge(published, how="left", on="architecture")


# Columns of ``shifts``, by their names in ``pairs.paired_difference``.
_OF_PAIRS = {
    "measure": "measure",
    "level": "level",
    "pairs": "n",
    "difference": "shift",
    "low": "ci_low",
    "high": "ci_high",
    "promised": "promised",
}


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
        A row per further level and measure: n pairs; shift, the mean change divided by
        the standard deviation over the models of the lowest level, with its interval,
        see ``pairs.paired_difference``; promised is r, at this level, times the shift
        of the gap.
    """
    names = list(measures)
    models = bootstrap.models
    lowest, *levels = sorted(models[column].unique())
    at_lowest = models[column] == lowest
    r = correlations(bootstrap.subset(at_lowest), names)["pearson_r"]
    values = models.set_index([*unit])[names].astype(float)
    before = values[at_lowest.to_numpy()]
    rows = []
    for level in levels:
        # In pairs: NaN where no network of the lowest level has the same unit.
        change = values[(models[column] == level).to_numpy()].sub(before)
        shift = change / before.std().replace(0, np.nan)
        for name, r_of_gap in zip(names, r, strict=True):
            promised = r_of_gap * shift["gap"].mean()
            of_measure = {"measure": name, "level": str(level), "promised": promised}
            rows.append(of_measure | paired_difference(shift[name]))
    return pd.DataFrame(rows, columns=[*_OF_PAIRS]).rename(columns=_OF_PAIRS)


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
    """Name of each choice: method, annotation other than boxes, and number of images.

    Args:
        table: of ``by_choice``.
    """
    names = []
    for row in table.itertuples():
        beside = "" if row.annotation == BOXES else f", {method_title(row.annotation)}"
        method = method_title(row.method, row.formula)
        names.append(f"{method}{beside}, {row.images:,.0f} images")
    return names
