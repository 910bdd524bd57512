"""Correlation of the overlap with the gap under each choice of notebook 05.

Scores come in two parts. In the closed part are methods with a closed form, whose maps
take one forward pass: all images, at the last stage and the study's image size. In the
sampled part are methods that need gradients or many passes, further stages and image
sizes, and Grad-CAM beside them: a sample of the images.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.ablations.attributions import COSTS
from helpers.ablations.compute import (
    ALL_IMAGES,
    ATTRIBUTED,
    BOXES,
    CLOSED,
    CLOSED_FORMS,
    CORRECT,
    PREDICTED,
    SAMPLED,
    TRUE,
)
from helpers.cams import localize
from helpers.scoring.store import Records
from helpers.statistics.correlate import (
    CONFIGURATION,
    Bootstrap,
    correlate,
    correlations_in_draws,
    finite_mean,
    kendall,
    of_table,
    percentile_interval,
)
from helpers.statistics.gap_tables import TOTAL, beside_published, correlation_table
from helpers.statistics.gap_tables import correlations as gap_correlations
from helpers.statistics.published import published_table
from helpers.statistics.reliability import reliability
from helpers.statistics.verdicts import NEGLIGIBLE

PAPER_THRESHOLD = 0.1  # of the map
PAPER_NETWORKS = 50  # untrained networks of an architecture
FEWEST_IMAGES = 5  # behind a mean
# Columns of a correlation; dropped are models, cells configurations.
CORRELATION = ["n", "dropped", "cells", "pearson_r", "ci_low", "ci_high", "kendall_tau"]
AS_PROMISED = "same direction"
REVERSED = "opposite direction"
UNDECIDED = "not told"  # as published tables have it
# Values of single images, (models, images), by method, formula and part.
ImageValues = Mapping[tuple[Any, ...], ArrayLike]
_PAPER_METHOD = "grad_cam"
# The paper's choice of maps and annotation; the closed part has all images.
_PAPER_CHOICE = {
    "method": _PAPER_METHOD,
    "formula": CORRECT,
    "annotation": BOXES,
    "part": CLOSED,
}
_NORMAL_95 = 1.96  # half-width of a 95 % interval in standard errors


def _matches(table: pd.DataFrame, fixed: Mapping[str, object]) -> pd.Series:
    """Mask of the rows that have the fixed values in their columns."""
    return (table[list(fixed)] == pd.Series(fixed)).all(axis=1)


def scores_of(records: Records, name: str, threshold: float) -> pd.DataFrame:
    """A table of the closed and the sampled part, one below the other.

    Args:
        records: of both parts.
        name: "scores" or "corrected".
        threshold: of the map, the paper's.

    Returns:
        The table with the columns part and of_paper, see ``mark_choice_of_paper``.
    """
    parts = [records.table(part, name).assign(part=part) for part in (CLOSED, SAMPLED)]
    return mark_choice_of_paper(pd.concat(parts, ignore_index=True), threshold)


def mark_choice_of_paper(table: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """Mark the rows of the paper's choice in a column ``of_paper``.

    Args:
        table: "scores" or "corrected", with the column part.
        threshold: of the map.

    Returns:
        The table with of_paper: Grad-CAM of the predicted class on all images.
    """
    paper = _PAPER_CHOICE | {"class_used": PREDICTED}
    if "subset" in table:  # "corrected" has all images, at the paper's threshold
        paper |= {"subset": ALL_IMAGES, "threshold": threshold}
    return table.assign(of_paper=_matches(table, paper))


def measures_by_choice(
    bootstrap: Bootstrap,
    scores: pd.DataFrame,
    keys: Sequence[str],
    value: str = "iou",
    single: ImageValues | None = None,
) -> tuple[Bootstrap, pd.DataFrame]:
    """Turn the scores of every choice into a column per choice, as a measure.

    A mean over fewer than ``FEWEST_IMAGES`` images is NaN, such as over the few images
    that a network classifies wrongly.

    Args:
        bootstrap: bootstrap of the models.
        scores: a row per model and choice.
        keys: columns that identify a choice.
        value: column of the score.
        single: values of single images by choice. For these choices the bootstrap draws
            scored images too; test images, behind the gap, are drawn for all.

    Returns:
        Bootstrap of the models with a column per choice; and per choice the column
        (measure), the keys, images (median over the models) and mean.
    """
    images = _values_of_test_images(bootstrap)
    columns = {}
    rows = []
    groups = scores.groupby(list(keys), sort=False, dropna=False)
    for number, (key, choice) in enumerate(groups):
        name = f"choice {number}"
        of_models = choice.set_index("model_id").reindex(bootstrap.models["model_id"])
        enough = of_models["n"] >= FEWEST_IMAGES
        columns[name] = of_models[value].where(enough).to_numpy(dtype=float)
        rows.append([name, *key, of_models["n"].median(), of_models[value].mean()])
        if single and key in single:
            images[name] = single[key]
    models = bootstrap.models.join(pd.DataFrame(columns, index=bootstrap.models.index))
    choices = pd.DataFrame(rows, columns=["measure", *keys, "images", "mean"])
    of_choices = Bootstrap(models, images, draws=bootstrap.draws, seed=bootstrap.seed)
    return of_choices, choices


def _values_of_test_images(bootstrap: Bootstrap) -> dict[str, ArrayLike]:
    """Values of single test images, where there are any."""
    name = "test_accuracy"
    return {name: bootstrap.images[name]} if name in bootstrap.images else {}


def correlations(
    bootstrap: Bootstrap, scores: pd.DataFrame, keys: Sequence[str], value: str = "iou"
) -> pd.DataFrame:
    """Correlate a score with the gap for every choice.

    Args:
        bootstrap: bootstrap of the models.
        scores: a row per model and choice.
        keys: columns that identify a choice.
        value: column of the score.

    Returns:
        A row per choice: keys, images, mean and ``CORRELATION``.
    """
    if scores.empty:
        return pd.DataFrame(columns=[*keys, "images", "mean", *CORRELATION])
    of_choices, choices = measures_by_choice(bootstrap, scores, keys, value)
    with_gap = gap_correlations(of_choices, choices["measure"])
    return choices.drop(columns="measure").join(with_gap[CORRELATION])


def at_last_stage(scores: pd.DataFrame) -> pd.DataFrame:
    """Scores at the last stage, at the study's image size, of all images of a model.

    Args:
        scores: see ``scores_of``.
    """
    # The closed part has no other stage and size.
    closed = scores[scores["part"] == CLOSED]
    is_last = scores["layer"].isin(closed["layer"])
    has_size = scores["image_size"].isin(closed["image_size"])
    return scores[is_last & has_size & (scores["subset"] == ALL_IMAGES)]


def rows_of_grad_cam(scores: pd.DataFrame, **fixed: object) -> pd.DataFrame:
    """Scores by Grad-CAM.

    Args:
        scores: of all methods.
        fixed: columns, with the value that they must have.
    """
    grad_cam = {"method": _PAPER_METHOD, "formula": CORRECT}
    return scores[_matches(scores, grad_cam | fixed)]


def published_pooled(minimum_train_accuracy: float) -> dict[str, float]:
    """The paper's pooled r of its measures.

    Args:
        minimum_train_accuracy: of the models.

    Returns:
        By measure; nothing for a threshold that the paper does not have.
    """
    table = published_table("du2024_table3")
    has_threshold = np.isclose(table["threshold"], minimum_train_accuracy)
    pooled = table[(table["architecture"] == TOTAL) & has_threshold]
    return pooled.set_index("method")["pearson_r"].to_dict()


def _by_architecture(
    bootstrap: Bootstrap,
    scores: pd.DataFrame,
    keys: Sequence[str],
    accuracies: Collection[float],
    published: pd.DataFrame,
    single: ImageValues | None = None,
) -> pd.DataFrame:
    """Correlation of each choice by architecture, then of all, beside the paper's r.

    Args:
        bootstrap: bootstrap of the models.
        scores: a row per model and choice.
        keys: columns that identify a choice, "method" among them.
        accuracies: training accuracies (threshold) that models exceed.
        published: the paper's table.
        single: values of single images by choice.
    """
    of_choices, choices = measures_by_choice(bootstrap, scores, keys, single=single)
    table = correlation_table(of_choices, choices["measure"], accuracies, tau=False)
    table = table.merge(choices, on="measure")
    table = table[["architecture", "threshold", *keys, "images", *CORRELATION]]
    table = beside_published(table.rename(columns={"method": "measure"}), published)
    return table.rename(columns={"measure": "method"})


def values_of_images(
    records: Records, models: Sequence[str]
) -> dict[tuple[str, str, str], ArrayLike]:
    """IoU of single images by each CAM method, part by part.

    Args:
        records: of the ablations.
        models: ids in the order of the rows.

    Returns:
        (models, images) by method, formula and part; without those that earlier
        versions of the workbook did not store.
    """
    places = [records.model_ids.index(name) for name in models]
    single = {}
    for part in (CLOSED, SAMPLED):
        for name, values in records.stacked(part).items():
            # Of the arrays those that ``compute.name_of_images`` names.
            if name.startswith("iou, "):
                _, method, formula = name.split(", ")
                single[method, formula, part] = values[places]
    return single


def cam_methods(
    bootstrap: Bootstrap,
    scores: pd.DataFrame,
    threshold: float,
    accuracies: Collection[float],
    single: ImageValues | None = None,
) -> pd.DataFrame:
    """The CAM methods at the paper's threshold; Du et al. 2024, Table 6.

    With the correct formula and with torchcam's. Methods with a closed form are scored
    on all images, the others on a sample. Grad-CAM comes first, and is repeated on the
    sample where that has fewer images.

    Args:
        bootstrap: bootstrap of the models.
        scores: see ``mark_choice_of_paper``.
        threshold: of the map.
        accuracies: training accuracies that models exceed.
        single: see ``values_of_images``; intervals draw the scored images with it.

    Returns:
        See ``_by_architecture``.
    """
    chosen = at_last_stage(scores)
    chosen = chosen[
        (chosen["threshold"] == threshold)
        & (chosen["class_used"] != TRUE)
        & (chosen["annotation"] == BOXES)
    ]
    closed = chosen[chosen["part"] == CLOSED]
    sampled = chosen[chosen["part"] == SAMPLED]
    grad_cam_on_sample = sampled.iloc[:0]
    if len(sampled) and sampled["n"].max() < closed["n"].max():
        grad_cam_on_sample = sampled[_has_method(sampled, CLOSED_FORMS[:1])]
    others = sampled[~_has_method(sampled, CLOSED_FORMS)]
    ordered = pd.concat([closed, grad_cam_on_sample, others])
    keys = ["method", "formula", "part"]
    published = published_table("du2024_table6")
    table = _by_architecture(bootstrap, ordered, keys, accuracies, published, single)
    return table.drop(columns="part")


def _has_method(
    scores: pd.DataFrame, methods: Collection[tuple[str, str]]
) -> NDArray[np.bool_]:
    """Mask of the rows whose method and formula are among some pairs."""
    rows = zip(scores["method"], scores["formula"], strict=True)
    return np.array([row in methods for row in rows], dtype=bool)


def annotations(
    bootstrap: Bootstrap,
    scores: pd.DataFrame,
    threshold: float,
    accuracies: Collection[float],
) -> pd.DataFrame:
    """Annotated boxes beside computed masks, by Grad-CAM; Du et al. 2024, Table 7.

    Args:
        bootstrap: bootstrap of the models.
        scores: see ``scores_of``.
        threshold: of the map.
        accuracies: training accuracies that models exceed.

    Returns:
        See ``_by_architecture``; published_r of each mask is that of the paper's
        saliency masks.
    """
    chosen = rows_of_grad_cam(
        at_last_stage(scores), part=CLOSED, class_used=PREDICTED, threshold=threshold
    )
    methods = chosen["annotation"].replace(BOXES, "annotated_boxes")
    chosen = chosen.assign(method=methods)
    published = published_table("du2024_table7")
    of_masks = published[published["method"] == "saliency_masks"]
    named = [published[published["method"] == "annotated_boxes"]]
    for provider in methods.unique():
        if provider != "annotated_boxes":
            named.append(of_masks.assign(method=provider))
    return _by_architecture(bootstrap, chosen, ["method"], accuracies, pd.concat(named))


def by_threshold(
    bootstrap: Bootstrap,
    scores: pd.DataFrame,
    minimum_train_accuracy: float,
    paper: float,
) -> pd.DataFrame:
    """Correlate with the gap at every threshold of the map, of the predicted class.

    Each CAM method against boxes, and Grad-CAM against computed masks.

    Args:
        bootstrap: bootstrap of the models.
        scores: see ``scores_of``.
        minimum_train_accuracy: of the models.
        paper: threshold of the study, by default the paper's.

    Returns:
        See ``correlations``; published_r where the choice is the paper's.
    """
    chosen = at_last_stage(scores)
    chosen = chosen[chosen["class_used"] != TRUE]
    # Methods with a closed form are taken from all images, not again from the sample.
    has_closed_form = _has_method(chosen, CLOSED_FORMS)
    chosen = chosen[~(has_closed_form & (chosen["part"] == SAMPLED))]
    keys = ["method", "formula", "annotation", "part"]
    table = correlations(bootstrap, chosen, [*keys, "threshold"])
    is_paper = _matches(table, _PAPER_CHOICE) & np.isclose(table["threshold"], paper)
    # At a study's threshold that is not the paper's there is no published r.
    is_paper &= np.isclose(paper, PAPER_THRESHOLD)
    published = published_pooled(minimum_train_accuracy).get("iou", np.nan)
    return table.assign(published_r=np.where(is_paper, published, np.nan))


def attributions_compared(bootstrap: Bootstrap, records: Records) -> pd.DataFrame:
    """Correlate each score of each attribution with the gap, beside Grad-CAM's.

    Args:
        bootstrap: bootstrap of the models of ``records``, in its order.
        records: of the attributed part.

    Returns:
        A row per measure and method: images, n, mean over the models, reliability,
        r with its interval, minus_cam (r minus that of Grad-CAM on the same images, in
        the same draws) with its interval, costs per image, and the reason where there
        are no maps.
    """
    values = records.stacked(ATTRIBUTED)  # (models, images) by "<measure>, <method>"
    costs = records.table(ATTRIBUTED, "costs")
    choices = list(product(localize.LESS_CHANCE, costs["method"].unique()))
    names = [f"{measure}, {method}" for measure, method in choices]
    models = bootstrap.models.assign(
        **{name: finite_mean(values[name].T) for name in names}
    )
    of_attributions = Bootstrap(
        models,
        _values_of_test_images(bootstrap) | values,
        draws=bootstrap.draws,
        seed=bootstrap.seed,
    )
    r = correlate(of_attributions, names)
    in_draws = correlations_in_draws(of_attributions, names)
    # For each choice the number of Grad-CAM's with the same measure.
    cams = [names.index(f"{measure}, {_PAPER_METHOD}") for measure, _ in choices]
    low, high = percentile_interval(in_draws - in_draws[:, cams], r["units"])
    table = pd.DataFrame(choices, columns=["measure", "method"]).assign(
        images=[values[name].shape[1] for name in names],
        n=r["n"],
        mean=models[names].mean().to_numpy(),
        reliability=[reliability(values[name]) for name in names],
        pearson_r=r["r"],
        ci_low=r["low"],
        ci_high=r["high"],
        kendall_tau=of_table(kendall, models[names], models["gap"]),
        minus_cam=r["r"] - r["r"].to_numpy()[cams],
        minus_cam_low=low,
        minus_cam_high=high,
    )
    by_method = costs.groupby("method")
    # A method has one reason; max skips the "" of models with maps, which sorts first.
    per_method = by_method[COSTS].median().join(by_method["reason"].max())
    return table.merge(per_method, left_on="method", right_index=True)


def equivalence_verdict(low: float, high: float) -> str:
    """Verdict of an equivalence test on whether a correlation is negligible.

    An interval that merely contains 0 does not show this: it must lie within plus or
    minus ``NEGLIGIBLE``.

    Args:
        low: end of the interval.
        high: end of the interval.

    Example:
        >>> equivalence_verdict(-0.05, 0.08)
        'nothing'
        >>> equivalence_verdict(-0.3, 0.4)
        'cannot tell'
    """
    if low >= -NEGLIGIBLE and high <= NEGLIGIBLE:
        return "nothing"
    return "something" if low > 0 or high < 0 else "cannot tell"


def validity(networks: pd.DataFrame, trained: Bootstrap) -> pd.DataFrame:
    """Correlate IoU with the gap among untrained networks; Du et al. 2024, Table 5.

    Args:
        networks: see ``compute.untrained_scores``; each is a configuration.
        trained: bootstrap of the trained models.

    Returns:
        A row per architecture, last "Total", beside trained networks and the paper;
        published_low and published_high are Fisher's interval of 50 networks each.
    """
    # Each untrained network is drawn by itself.
    untrained = Bootstrap(networks, draws=trained.draws, seed=trained.seed)
    untrained = untrained.variant(unit="model_id")
    rows = []
    for name in [*networks["architecture"].unique(), TOTAL]:
        random_networks = _select_architecture(untrained, name)
        trained_networks = _select_architecture(trained, name)
        row = {
            "architecture": name,
            "images": random_networks.models["train_images"].mean(),
            "train_accuracy": random_networks.models["train_accuracy"].mean(),
            "test_accuracy": random_networks.models["test_accuracy"].mean(),
            "mean": random_networks.models["iou"].mean(),
        }
        correlation = gap_correlations(random_networks, ["iou"])
        row |= correlation[CORRELATION].iloc[0].to_dict()
        row |= {
            "tells": equivalence_verdict(row["ci_low"], row["ci_high"]),
            "trained_n": len(trained_networks.models),
            "trained_r": correlate(trained_networks, ["iou"])["r"][0],
        }
        rows.append(row)
    published = _published_validity()
    return pd.DataFrame(rows).merge(published, how="left", on="architecture")


def _select_architecture(bootstrap: Bootstrap, name: str) -> Bootstrap:
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
    low = np.tanh(np.arctanh(published["published_r"]) - half_width)
    high = np.tanh(np.arctanh(published["published_r"]) + half_width)
    return published.assign(
        published_low=low,
        published_high=high,
        published_tells=list(map(equivalence_verdict, low, high)),
    )


def shifts(
    bootstrap: Bootstrap, measures: Sequence[str], column: str, unit: Sequence[str]
) -> pd.DataFrame:
    """Change of measures where one column alone changes, such as label_noise.

    Args:
        bootstrap: bootstrap of the models.
        measures: columns of the models; "gap" must be one.
        column: whose lowest level is compared with each other level.
        unit: columns that two models of a pair share.

    Returns:
        A row per further level and measure. change is the mean over pairs; shift is
        change divided by the standard deviation over the models of the lowest level;
        promised is r times the shift of the gap, the shift that the correlation
        predicts; kept is ``AS_PROMISED`` where shift and promised have the same sign,
        else ``REVERSED``, and ``UNDECIDED`` where the interval of shift, of r or of the
        shift of the gap contains 0.
    """
    models = bootstrap.models
    levels = sorted(models[column].dropna().unique())
    is_lowest = models[column].isin(levels[:1])
    at_lowest = gap_correlations(bootstrap.subset(is_lowest), measures)
    r = at_lowest[["pearson_r", "ci_low", "ci_high"]]
    r = r.set_axis(["r", "r_low", "r_high"], axis=1)
    values = models[list(measures)].astype(float)
    spread = values[is_lowest].std().replace(0, np.nan).to_numpy()
    row_numbers = models[[*unit, CONFIGURATION]].rename_axis("row").reset_index()
    tables = []
    for level in levels[1:]:
        pairs = row_numbers[is_lowest].merge(
            row_numbers[models[column] == level],
            on=list(unit),
            suffixes=("", "_moved"),
            validate="one_to_one",
        )
        # (pairs, measures)
        array = values.to_numpy()
        change = array[pairs["row_moved"]] - array[pairs["row"]]
        of_pairs = Bootstrap(pairs, draws=bootstrap.draws, seed=bootstrap.seed)
        shift, low, high, _ = of_pairs.mean(change / spread)
        table = pd.DataFrame(
            {
                "measure": list(measures),
                "column": column,
                "level": str(level),
                "n": np.isfinite(change).sum(0),
                "cells": of_pairs.units(np.isfinite(change)),
                "change": finite_mean(change),
                "shift": shift,
                "ci_low": low,
                "ci_high": high,
            }
        )
        tables.append(_with_promise(table.join(r)))
    if tables:
        return pd.concat(tables, ignore_index=True)
    columns = ["measure", "column", "level", "n", "cells", "change", "shift"]
    columns += ["ci_low", "ci_high", *r.columns, "promised", "kept"]
    return pd.DataFrame(columns=columns)


def _with_promise(table: pd.DataFrame) -> pd.DataFrame:
    """Add the shifts that the correlations with the gap predict, and the verdicts."""
    gap = table.set_index("measure").loc["gap"]
    promised = table["r"] * gap["shift"]
    is_as_promised = np.sign(table["shift"]) == np.sign(promised)
    direction = np.where(is_as_promised, AS_PROMISED, REVERSED)
    is_decided = (
        (table["ci_low"] * table["ci_high"] > 0)
        & (table["r_low"] * table["r_high"] > 0)
        & (gap["ci_low"] * gap["ci_high"] > 0)
    )
    directions = np.where(is_decided, direction, UNDECIDED)
    return table.assign(promised=promised, kept=directions)
