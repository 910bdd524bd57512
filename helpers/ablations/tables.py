"""Tables of the ablations: how the correlation of the overlap with the gap changes with each choice, with n and interval."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

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
from helpers.cams import chance
from helpers.scoring.store import Kept
from helpers.statistics.correlations import finite_mean
from helpers.statistics.draws import Draws, percentile_interval
from helpers.statistics.published import published_table
from helpers.statistics.reliability import reliability
from helpers.statistics.tables import TOTAL, beside_published, correlation_table
from helpers.statistics.verdicts import NEGLIGIBLE

_TESTED = ("test_accuracy",)  # values of single test images
PAPER_THRESHOLD, PAPER_NETWORKS = (
    0.1,
    50,
)  # of the map; untrained networks an architecture
FEWEST_IMAGES = 5
CORRELATION = ["n", "dropped", "cells", "pearson_r", "ci_low", "ci_high", "kendall_tau"]
AS_PROMISED, REVERSED, NOT_TOLD = "same direction", "opposite direction", "not told"


def scores_of(kept: Kept, name: str, threshold: float) -> pd.DataFrame:
    """A table of both parts, "scores" or "corrected", as ``marked`` has it."""
    parts = [kept.table(part, name).assign(part=part) for part in (CLOSED, SAMPLED)]
    return marked(pd.concat(parts, ignore_index=True), threshold)


def marked(table: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """Mark the rows of the paper's choice.

    Args:
        table: "scores" or "corrected", with its part.
        threshold: of the map.

    Returns:
        The table with of_paper: Grad-CAM of the predicted class on all images.
    """
    fixed = {
        "method": CLOSED_FORMS[0][0],
        "formula": CORRECT,
        "class_used": PREDICTED,
        "annotation": BOXES,
        "part": CLOSED,
    }
    fixed |= {"subset": ALL_IMAGES, "threshold": threshold} if "subset" in table else {}
    return table.assign(of_paper=(table[list(fixed)] == pd.Series(fixed)).all(axis=1))


def each_choice(
    draws: Draws,
    scores: pd.DataFrame,
    keys: Sequence[str],
    value: str = "iou",
    single: Mapping[tuple[Any, ...], ArrayLike] | None = None,
) -> tuple[Draws, pd.DataFrame]:
    """One column of the models for every combination of keys.

    Args:
        draws: of the models.
        scores: a row per model and choice, with n, its images.
        keys: columns that name a choice.
        value: the column that is scored.
        single: (models, images) values by choice, where they are kept: scored images are
            drawn for these, test images for all.

    Returns:
        The draws with a column per choice, and of each (measure) the keys, images
        (median of the models) and mean. A value of fewer than ``FEWEST_IMAGES`` images,
        such as those that a network gets wrong, is none.
    """
    images = {name: draws.images[name] for name in _TESTED if name in draws.images}
    columns, facts = {}, []
    choices = scores.groupby(list(keys), sort=False, dropna=False)
    for number, (key, part) in enumerate(choices):
        name = f"choice {number}"
        rows = part.set_index("model_id").reindex(draws.models["model_id"])
        enough = rows[value].where(rows["n"] >= FEWEST_IMAGES)
        columns[name] = enough.to_numpy(dtype=float)
        facts.append([name, *key, rows["n"].median(), rows[value].mean()])
        if single and key in single:
            images[name] = single[key]
    models = draws.models.join(pd.DataFrame(columns, index=draws.models.index))
    table = pd.DataFrame(facts, columns=["measure", *keys, "images", "mean"])
    return Draws(models, images, draws=draws.draws, seed=draws.seed), table


def correlations(
    draws: Draws, scores: pd.DataFrame, keys: Sequence[str], value: str = "iou"
) -> pd.DataFrame:
    """Correlate a score with the gap for every choice: keys, images, mean and ``CORRELATION``."""
    if scores.empty:
        return pd.DataFrame(columns=[*keys, "images", "mean", *CORRELATION])
    own, facts = each_choice(draws, scores, keys, value)
    return facts.drop(columns="measure").join(
        own.correlations(facts["measure"], tau=False)[CORRELATION]
    )


def at_last_stage(scores: pd.DataFrame) -> pd.DataFrame:
    """The scores at the last stage, at the study's own image size, of all images of a model."""
    closed = scores[scores["part"] == CLOSED]
    chosen = scores["layer"].isin(closed["layer"].unique()) & scores["image_size"].isin(
        closed["image_size"].unique()
    )
    return scores[chosen & (scores["subset"] == ALL_IMAGES)]


def of_grad_cam(scores: pd.DataFrame, **fixed: object) -> pd.DataFrame:
    """The scores by Grad-CAM; ``fixed`` names columns and the value that they must have."""
    wanted = dict(zip(("method", "formula"), CLOSED_FORMS[0], strict=True)) | fixed
    return scores[(scores[list(wanted)] == pd.Series(wanted)).all(axis=1)]


def published_pooled(minimum_train_accuracy: float) -> dict[str, float]:
    """The paper's pooled r of its measures among the models above a training accuracy; nothing for a threshold it does not have."""
    table = published_table("du2024_table3")
    chosen = (table["architecture"] == TOTAL) & np.isclose(
        table["threshold"], minimum_train_accuracy
    )
    return table[chosen].set_index("method")["pearson_r"].to_dict()


def _by_architecture(
    draws: Draws,
    scores: pd.DataFrame,
    keys: Sequence[str],
    accuracies: Collection[float],
    theirs: pd.DataFrame,
    single: Mapping[tuple[Any, ...], ArrayLike] | None = None,
) -> pd.DataFrame:
    """Each choice per architecture, and last of all, above each training accuracy (threshold), beside the paper's r of the method."""
    own, facts = each_choice(draws, scores, keys, single=single)
    table = correlation_table(own, facts["measure"], accuracies, tau=False).merge(
        facts, on="measure"
    )
    table = table[["architecture", "threshold", *keys, "images", *CORRELATION]].rename(
        columns={"method": "measure"}
    )
    return beside_published(table, theirs).rename(columns={"measure": "method"})


def values_of_images(
    kept: Kept, models: Sequence[str]
) -> dict[tuple[str, str, str], ArrayLike]:
    """IoU of single images by each CAM method, part by part.

    Args:
        kept: records of the ablations.
        models: ids in the order of the rows.

    Returns:
        (models, images) by method, formula and part; without those that earlier versions
        of the workbook did not keep.
    """
    places = [kept.model_ids.index(name) for name in models]
    single = {}
    for part in (CLOSED, SAMPLED):
        for name, values in kept.stacked(part).items():
            prefix, _, way = name.partition(", ")
            if prefix == "iou":
                method, formula = way.split(", ")
                single[method, formula, part] = values[places]
    return single


def cam_methods(
    draws: Draws,
    scores: pd.DataFrame,
    threshold: float,
    accuracies: Collection[float],
    single: Mapping[tuple[Any, ...], ArrayLike] | None = None,
) -> pd.DataFrame:
    """The CAM methods at the paper's threshold, correct and as torchcam computes them.

    Du et al. 2024, Table 6. What has a closed form is scored on all images, the others
    on some; Grad-CAM stands first, and again on these images where they are fewer.

    Args:
        draws: of the models.
        scores: see ``marked``.
        threshold: of the map.
        accuracies: training accuracies above which models are taken.
        single: see ``values_of_images``; intervals draw the scored images with it.

    Returns:
        A row per architecture, training accuracy and method: see ``correlations``, beside
        the paper's r.
    """
    chosen = at_last_stage(scores)
    chosen = chosen[
        (chosen["threshold"] == threshold)
        & (chosen["class_used"] != TRUE)
        & (chosen["annotation"] == BOXES)
    ]
    closed = chosen[chosen["part"] == CLOSED]
    sampled = chosen[chosen["part"] == SAMPLED]
    ways = pd.Series(
        zip(sampled["method"], sampled["formula"], strict=True), index=sampled.index
    )
    fewer = len(sampled) and sampled["n"].max() < closed["n"].max()
    again = sampled[ways.isin(CLOSED_FORMS[:1])] if fewer else sampled[:0]
    ordered = pd.concat([closed, again, sampled[~ways.isin(CLOSED_FORMS)]])
    return _by_architecture(
        draws,
        ordered,
        ["method", "formula", "part"],
        accuracies,
        published_table("du2024_table6"),
        single,
    ).drop(columns="part")


def annotations(
    draws: Draws, scores: pd.DataFrame, threshold: float, accuracies: Collection[float]
) -> pd.DataFrame:
    """Annotated boxes beside masks of machines (published_r: the paper's saliency masks), by Grad-CAM; Du et al. 2024, Table 7."""
    chosen = of_grad_cam(
        at_last_stage(scores), part=CLOSED, class_used=PREDICTED, threshold=threshold
    )
    chosen = chosen.assign(
        method=chosen["annotation"].replace(BOXES, "annotated_boxes")
    )
    theirs = published_table("du2024_table7")
    masks = theirs[theirs["method"] == "saliency_masks"]
    providers = [
        masks.assign(method=name)
        for name in chosen["method"].unique()
        if name != "annotated_boxes"
    ]
    return _by_architecture(
        draws,
        chosen,
        ["method"],
        accuracies,
        pd.concat([theirs[theirs["method"] == "annotated_boxes"], *providers]),
    )


def by_threshold(
    draws: Draws, scores: pd.DataFrame, minimum_train_accuracy: float, paper: float
) -> pd.DataFrame:
    """Correlate at every threshold of the map: each CAM method, and Grad-CAM against masks of machines; all of the predicted class."""
    chosen = at_last_stage(scores)
    # On the sampled images what has a closed form would only be repeated.
    ways = pd.Series(
        zip(chosen["method"], chosen["formula"], strict=True), index=chosen.index
    )
    chosen = chosen[
        (chosen["class_used"] != TRUE)
        & ~((chosen["part"] == SAMPLED) & ways.isin(CLOSED_FORMS))
    ]
    keys = ["method", "formula", "annotation", "part"]
    table = correlations(draws, chosen, [*keys, "threshold"])
    of_paper = (table[keys] == table[keys].iloc[0]).all(axis=1)
    is_paper = (
        of_paper
        & np.isclose(table["threshold"], paper)
        & np.isclose(paper, PAPER_THRESHOLD)
    )
    return table.assign(
        published_r=np.where(
            is_paper,
            published_pooled(minimum_train_accuracy).get("iou", np.nan),
            np.nan,
        )
    )


def attributions_compared(draws: Draws, kept: Kept) -> pd.DataFrame:
    """How each score of each attribution goes with the gap, beside that of Grad-CAM on the same images.

    minus_cam is r less Grad-CAM's, paired; costs are per image. ``draws`` has the models of ``kept``, in its order.
    """
    tables, values, costs = (
        [],
        kept.stacked(ATTRIBUTED),
        kept.table(ATTRIBUTED, "costs"),
    )
    means = {name: finite_mean(single.T) for name, single in values.items()}
    test = {
        name: single for name, single in draws.images.items() if name == "test_accuracy"
    }
    own, methods = (
        Draws(
            draws.models.assign(**means),
            test | values,
            draws=draws.draws,
            seed=draws.seed,
        ),
        costs["method"].unique(),
    )
    for measure in chance.LESS_CHANCE:
        names = [f"{measure}, {method}" for method in methods]
        r = own.estimate(names)
        low, high = percentile_interval(r.drawn - r.drawn[:, :1], r.configurations)
        facts = {
            "measure": measure,
            "method": methods,
            "images": [values[name].shape[1] for name in names],
        }
        facts |= {
            "mean": own.models[names].mean().to_numpy(),
            "reliability": [reliability(values[name]) for name in names],
        }
        facts |= {
            "minus_cam": r.value - r.value[0],
            "minus_cam_low": low,
            "minus_cam_high": high,
        }
        tables.append(own.correlations(names, tau=False).assign(**facts))
    per_method = (
        costs.groupby("method")[COSTS]
        .median()
        .join(costs.groupby("method")["reason"].max())
    )
    shown = [
        "measure",
        "method",
        "images",
        "n",
        "mean",
        "reliability",
        "pearson_r",
        "ci_low",
        "ci_high",
        "kendall_tau",
    ]
    shown += ["minus_cam", "minus_cam_low", "minus_cam_high"]
    return pd.concat(tables, ignore_index=True)[shown].merge(
        per_method, left_on="method", right_index=True
    )


def tells(low: float, high: float) -> str:
    """Whether a correlation that must be none is none, by equivalence: that an interval contains 0 shows nothing."""
    if low >= -NEGLIGIBLE and high <= NEGLIGIBLE:
        return "nothing"
    return "something" if low > 0 or high < 0 else "cannot tell"


def validity(networks: pd.DataFrame, trained: Draws) -> pd.DataFrame:
    """Correlate IoU with the gap among untrained networks (``untrained_scores``), beside trained ones; Du et al. 2024, Table 5.

    A row per architecture, last "Total"; each network is a configuration. published_low and _high are Fisher's interval of 50 networks
    each.
    """
    # Each random network is drawn by itself.
    draws = Draws(networks, draws=trained.draws, seed=trained.seed).drawing("model_id")
    means = {
        "images": "train_images",
        "train_accuracy": "train_accuracy",
        "test_accuracy": "test_accuracy",
        "mean": "iou",
    }
    rows = []
    for name in [*networks["architecture"].unique(), TOTAL]:
        own, others = (
            part.of((part.models["architecture"] == name) | (name == TOTAL))
            for part in (draws, trained)
        )
        row = {"architecture": name} | {
            column: own.models[source].mean() for column, source in means.items()
        }
        row |= own.correlations(["iou"], tau=False)[CORRELATION].iloc[0].to_dict()
        row["tells"] = tells(row["ci_low"], row["ci_high"])
        rows.append(
            row
            | {
                "trained_n": len(others.models),
                "trained_r": others.estimate(["iou"]).value[0],
            }
        )
    theirs = published_table("du2024_table5").rename(
        columns={"pearson_r": "published_r"}
    )[["architecture", "published_r"]]
    half = 1.96 / np.sqrt(
        np.where(
            theirs["architecture"] == TOTAL,
            PAPER_NETWORKS * (len(theirs) - 1),
            PAPER_NETWORKS,
        )
        - 3
    )
    low, high = (
        np.tanh(np.arctanh(theirs["published_r"]) + sign * half) for sign in (-1, 1)
    )
    theirs = theirs.assign(
        published_low=low,
        published_high=high,
        published_tells=list(map(tells, low, high)),
    )
    return pd.DataFrame(rows).merge(theirs, how="left", on="architecture")


def shifts(
    draws: Draws, measures: Sequence[str], column: str, unit: Sequence[str]
) -> pd.DataFrame:
    """How far measures move where one column alone changes, such as label_noise: the mean over pairs of models that share the unit.

    A row per further level and measure, of which "gap" must be one. shift is in standard deviations over the models of the lowest level;
    promised is r times the gap's shift; kept is the direction alone, ``NOT_TOLD`` where an interval of shift, r or the gap's shift contains
    0.
    """
    models = draws.models
    levels = sorted(models[column].dropna().unique())
    lowest = models[column].isin(levels[:1])
    known = (
        draws.of(lowest)
        .correlations(measures, tau=False)
        .rename(columns={"pearson_r": "r", "ci_low": "r_low", "ci_high": "r_high"})
    )
    values, ends, tables = (
        models[list(measures)].astype(float),
        models[[*unit, "cell"]].rename_axis("at").reset_index(),
        [],
    )
    for level in levels[1:]:
        pairs = ends[lowest].merge(
            ends[models[column] == level],
            on=list(unit),
            suffixes=("", "_moved"),
            validate="one_to_one",
        )
        change = values.to_numpy()[pairs["at_moved"]] - values.to_numpy()[pairs["at"]]
        among, spread = (
            Draws(pairs, draws=draws.draws, seed=draws.seed),
            values[lowest].std().replace(0, np.nan).to_numpy(),
        )
        shift, low, high = among.mean(change / spread)
        facts = {
            "measure": list(measures),
            "column": column,
            "level": str(level),
            "n": np.isfinite(change).sum(0),
        }
        facts |= {
            "cells": among.configurations(np.isfinite(change)),
            "change": finite_mean(change),
        }
        table = pd.DataFrame(
            facts | {"shift": shift, "ci_low": low, "ci_high": high}
        ).join(known[["r", "r_low", "r_high"]])
        gap = table.set_index("measure").loc["gap"]
        told = (
            (table["ci_low"] * table["ci_high"] > 0)
            & (table["r_low"] * table["r_high"] > 0)
            & (gap["ci_low"] * gap["ci_high"] > 0)
        )
        promised = table["r"] * gap["shift"]
        kept = np.where(
            np.sign(table["shift"]) == np.sign(promised), AS_PROMISED, REVERSED
        )
        tables.append(
            table.assign(promised=promised, kept=np.where(told, kept, NOT_TOLD))
        )
    names = [
        "measure",
        "column",
        "level",
        "n",
        "cells",
        "change",
        "shift",
        "ci_low",
        "ci_high",
        "r",
        "r_low",
        "r_high",
        "promised",
        "kept",
    ]
    return (
        pd.concat(tables, ignore_index=True)[names]
        if tables
        else pd.DataFrame(columns=names)
    )
