"""Tables of the ablations: how the correlation of the overlap with the gap changes with each choice, with n and interval."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.ablations.compute import ALL_IMAGES, BOXES, CLOSED_FORMS, CORRECT, LAYER_METHODS, NO_CLASS, PREDICTED, RIGHT, TRUE
from helpers.statistics.correlations import Array, pearson
from helpers.statistics.hyperparameters import subsets
from helpers.statistics.published import published_table
from helpers.statistics.resampling import correlated, drawn_with_images
from helpers.statistics.tables import TOTAL, correlation_table
from helpers.statistics.verdicts import NEGLIGIBLE

PAPER_THRESHOLD, PAPER_NETWORKS = 0.1, 50  # of the map; untrained networks an architecture

# Two maps whose pixels differ by less than this are one map; rounding in single precision moves them by some 1e-6.
SAME = 1e-3
_PAPER = dict(zip(("method", "formula"), CLOSED_FORMS[0], strict=True))


Images = Mapping[str, ArrayLike] | None
_CORRELATION = ["n", "dropped", "cells", "pearson_r", "ci_low", "ci_high", "kendall_tau"]


def correlation(
    values: ArrayLike, models: pd.DataFrame, resamples: int, seed: int, drawn: Mapping[str, Array] | None = None
) -> dict[str, float]:
    """Correlate one value per model with its gap: n, dropped (not finite), cells, pearson_r, ci_low, ci_high, kendall_tau.

    The interval is over cells, over the test images behind the gap where ``drawn`` has it (see ``resampling.drawn_with_images``), and over
    the scoring images too where the values are the models' iou, that of the paper's setting. What is undefined is NaN.
    """
    table = models.assign(value=np.asarray(values, dtype=float))
    options = {"draws": resamples, "seed": seed, "drawn": of_the_paper(table, ["value"], drawn or {})}
    return correlated(table, ["value"], **options)[_CORRELATION].to_dict("records")[0]


def of_the_paper(models: pd.DataFrame, columns: Sequence[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """What is known by column, and what is known of iou for those columns too that are the same values."""
    alike = [name for name in columns if "iou" in known and models[name].equals(models["iou"])]
    return {**known, **dict.fromkeys(alike, known.get("iou"))}


def correlations(
    models: pd.DataFrame, scores: pd.DataFrame, keys: Sequence[str], *, resamples: int = 1000, seed: int = 0, images: Images = None
) -> pd.DataFrame:
    """Correlate IoU with the gap for every setting.

    Args:
        models: one row per model: model_id, gap, cell, and for ``images`` test_accuracy and iou, that of the paper's setting.
        scores: rows of ``store.load_ablations``, at most one per model and setting.
        keys: the columns that name a setting.
        resamples: of the interval.
        seed: of the resampling.
        images: values of single images of the models: iou of the paper's setting, and test_accuracy.

    Returns:
        One row per setting, in the order of the scores: the keys, images (median number behind a model's score), mean of IoU, and
        ``correlation``.
    """
    rows, drawn = [], drawn_with_images(models, ["iou"], images, resamples, seed)
    for values, part in scores.groupby(list(keys), sort=False, dropna=False):
        own = models[["model_id"]].merge(part[["model_id", "n", "iou"]], how="left", on="model_id", validate="1:1")
        averages = {"images": own["n"].median(), "mean": own["iou"].mean()}
        rows.append(dict(zip(keys, values, strict=True)) | averages | correlation(own["iou"], models, resamples, seed, drawn))
    return pd.DataFrame(rows, columns=[*keys, "images", "mean", *_CORRELATION])


def on_the_same_images(scores: pd.DataFrame) -> pd.DataFrame:
    """Scores of every way on the first images, the paper's first, and last the paper's way on all images where these are more."""
    sampled, paper = scores[scores["part"] == "sampled"], of_paper(scores, part="closed")
    first = sampled["method"] == _PAPER["method"]
    more = [paper] if paper["n"].max() > sampled["n"].max() else []
    return pd.concat([sampled[first], sampled[~first], *more])


def at_last_stage(scores: pd.DataFrame) -> pd.DataFrame:
    """Take the scores at the last stage and at the study's own image size, of all images of a model."""
    closed = scores[scores["part"] == "closed"]
    chosen = scores["layer"].isin(closed["layer"].unique()) & scores["image_size"].isin(closed["image_size"].unique())
    return scores[chosen & (scores["subset"] == ALL_IMAGES)]


def of_paper(scores: pd.DataFrame, **fixed: object) -> pd.DataFrame:
    """Take the scores by Grad-CAM; ``fixed`` names columns and the value that they must have."""
    return scores[(scores[[*_PAPER, *fixed]] == pd.Series(_PAPER | fixed)).all(axis=1)]


def published_pooled(minimum_train_accuracy: float) -> dict[str, float]:
    """The paper's pooled r of its measures among the models above a training accuracy; nothing for a threshold it does not have."""
    table = published_table("du2024_table3")
    chosen = (table["architecture"] == TOTAL) & np.isclose(table["threshold"], minimum_train_accuracy)
    return table[chosen].set_index("method")["pearson_r"].to_dict()


def _by_architecture(
    models: pd.DataFrame,
    named: pd.DataFrame,
    thresholds: Collection[float],
    theirs: pd.DataFrame,
    resamples: int,
    seed: int,
    images: Images,
) -> pd.DataFrame:
    """Correlate scores that have a ``row`` name, per architecture and training accuracy, beside the paper's (method, architecture, ...)."""
    wide = named.pivot(index="model_id", columns="row", values="iou")
    joined = models.drop(columns=[name for name in wide if name in models]).merge(wide, how="left", left_on="model_id", right_index=True)
    names = list(named["row"].unique())
    drawing = {"images": of_the_paper(joined, names, images or {}), "resamples": resamples, "kendall_resamples": 0, "seed": seed}
    table = correlation_table(joined, names, thresholds, **drawing)
    facts = named.groupby("row", sort=False).agg(method=("method", "first"), images=("n", "median"))
    table = table.drop(columns=["kendall_low", "kendall_high"]).merge(facts, how="left", left_on="measure", right_index=True)
    theirs = theirs.rename(columns={"pearson_r": "published_r"})
    table = table.merge(theirs, how="left", on=["method", "architecture", "threshold"])
    return table.assign(difference=table["pearson_r"] - table["published_r"])


def cam_methods(
    models: pd.DataFrame,
    scores: pd.DataFrame,
    threshold: float,
    accuracies: Collection[float],
    *,
    resamples: int,
    seed: int,
    images: Images = None,
) -> pd.DataFrame:
    """Compare the CAM methods on the same images, correct and as torchcam computes them, at the paper's threshold; Du et al. 2024, Table 6.

    Returns:
        One row per architecture (last "Total"), training accuracy (threshold) and way to compute the map (method, formula, images per
        model; Grad-CAM on all images last): n, dropped, cells, pearson_r, ci_low, ci_high, kendall_tau, published_r, difference,
        same_map_as (another way whose maps are these for every model, to rounding, as theory has it: the row says nothing of its own).
    """
    chosen = on_the_same_images(at_last_stage(scores))
    chosen = chosen[(chosen["threshold"] == threshold) & chosen["class_used"].isin([PREDICTED, NO_CLASS]) & (chosen["annotation"] == BOXES)]
    named = chosen.assign(row=chosen["method"] + "|" + chosen["formula"] + "|" + chosen["part"])
    table = _by_architecture(models, named, accuracies, published_table("du2024_table6"), resamples, seed, images)
    table[["formula", "part"]] = table["measure"].str.split("|", expand=True).reindex(columns=[1, 2])
    sampled = chosen[chosen["part"] == "sampled"].groupby(["method", "formula"]).agg({"nearest": set, "difference": "max"})
    same = {key: next(iter(row.nearest)) for key, row in sampled.iterrows() if len(row.nearest) == 1 and row.difference < SAME}
    same = {(method, formula): name for (method, formula), name in same.items() if name != f"{method} ({formula})"}
    keys = zip(table["method"], table["formula"], table["part"], strict=True)
    table["same_map_as"] = [same.get(key[:2], "") if key[2] == "sampled" else "" for key in keys]
    front = ["architecture", "threshold", "method", "formula", "images"]
    return table[[*front, *(name for name in table if name not in [*front, "measure", "part"])]]


def annotations(
    models: pd.DataFrame,
    scores: pd.DataFrame,
    threshold: float,
    accuracies: Collection[float],
    *,
    resamples: int,
    seed: int,
    images: Images = None,
) -> pd.DataFrame:
    """Compare annotated boxes with masks made by machines, by Grad-CAM at the paper's threshold; Du et al. 2024, Table 7.

    Returns:
        One row per architecture (last "Total"), training accuracy (threshold) and method (annotated_boxes, or the provider of the masks):
        images (median per model; one with an empty mask is dropped), n, dropped, cells, pearson_r, ci_low, ci_high, kendall_tau,
        published_r (of a provider: that of the paper's saliency masks), difference.
    """
    chosen = of_paper(at_last_stage(scores), part="closed", class_used=PREDICTED, threshold=threshold)
    names = np.where(chosen["annotation"] == BOXES, "annotated_boxes", chosen["annotation"])
    theirs = published_table("du2024_table7")
    masks = [theirs[theirs["method"] == "saliency_masks"].assign(method=name) for name in np.unique(names) if name != "annotated_boxes"]
    theirs = pd.concat([theirs[theirs["method"] == "annotated_boxes"], *masks])
    table = _by_architecture(models, chosen.assign(row=names, method=names), accuracies, theirs, resamples, seed, images)
    front = ["architecture", "threshold", "method", "images"]
    return table[[*front, *(name for name in table if name not in [*front, "measure"])]]


def paper_scores(models: pd.DataFrame, scores: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """Join iou and iou_b of the paper's setting (Grad-CAM of the predicted class, all images, annotated boxes) to a table of models."""
    chosen = of_paper(at_last_stage(scores), part="closed", class_used=PREDICTED, annotation=BOXES, threshold=threshold)
    others = models.drop(columns=[name for name in ("iou", "iou_b") if name in models])
    return others.merge(chosen[["model_id", "iou", "iou_b"]], how="left", on="model_id", validate="1:1")


def tells(low: float, high: float) -> str:
    """Whether a correlation that must be none is none, by equivalence: "nothing" for an interval within ±``NEGLIGIBLE``, "something"
    for one that leaves 0 out, else "cannot tell": that an interval contains 0 shows nothing.
    """
    if low >= -NEGLIGIBLE and high <= NEGLIGIBLE:
        return "nothing"
    return "something" if low > 0 or high < 0 else "cannot tell"


def validity(networks: pd.DataFrame, models: pd.DataFrame, *, resamples: int, seed: int) -> pd.DataFrame:
    """Correlate IoU with the gap among untrained networks, beside the trained ones; Du et al. 2024, Table 5.

    Args:
        networks: one row per untrained network, see ``store.UNTRAINED_COLUMNS``; each is a cell of its own.
        models: the trained ones: architecture, gap, cell, iou.
        resamples: of the interval.
        seed: of the resampling.

    Returns:
        One row per architecture, last "Total": images, accuracies and IoU on average, n, dropped, cells, pearson_r, ci_low, ci_high,
        kendall_tau, tells (see ``tells``), published_r with published_low and published_high (Fisher's interval of the paper's 50
        networks an architecture) and published_tells, trained_n, trained_r.
    """
    networks = networks.assign(cell=[f"{row.architecture} {row.seed}" for row in networks.itertuples()])
    means = {"images": "train_images", "train_accuracy": "train_accuracy", "test_accuracy": "test_accuracy", "mean": "iou"}
    rows = []
    for name in [*networks["architecture"].unique(), TOTAL]:
        mine, trained = (table if name == TOTAL else table[table["architecture"] == name] for table in (networks, models))
        averages = {column: mine[source].mean() for column, source in means.items()}
        row = {"architecture": name} | averages | correlation(mine["iou"], mine, resamples, seed)
        row["tells"] = tells(row["ci_low"], row["ci_high"])
        rows.append(row | {"trained_n": len(trained), "trained_r": pearson(trained["iou"], trained["gap"])})
    theirs = published_table("du2024_table5").rename(columns={"pearson_r": "published_r"})[["architecture", "published_r"]]
    half = 1.96 / np.sqrt(np.where(theirs["architecture"] == TOTAL, PAPER_NETWORKS * (len(theirs) - 1), PAPER_NETWORKS) - 3)
    ends = [np.tanh(np.arctanh(theirs["published_r"]) + sign * half) for sign in (-1, 1)]
    theirs = theirs.assign(published_low=ends[0], published_high=ends[1], published_tells=list(map(tells, *ends)))
    return pd.DataFrame(rows).merge(theirs, how="left", on="architecture")


def by_threshold(
    models: pd.DataFrame,
    scores: pd.DataFrame,
    minimum_train_accuracy: float,
    paper: float,
    *,
    resamples: int,
    seed: int,
    images: Images = None,
) -> pd.DataFrame:
    """Correlate at every threshold of the map: each CAM method, and Grad-CAM against masks of machines; all of the predicted class.

    Returns:
        Rows of ``correlations`` by way (a label; the paper's first), method, formula, annotation, part and threshold, with published_r
        where the paper has the setting: its pooled Table 3 for models above the same training accuracy.
    """
    chosen = at_last_stage(scores)
    # On the sampled images what has a closed form would only be repeated.
    ways = pd.Series(zip(chosen["method"], chosen["formula"], strict=True), index=chosen.index)
    repeated = (chosen["part"] == "sampled") & ways.isin(CLOSED_FORMS)
    chosen = chosen[chosen["class_used"].isin([PREDICTED, NO_CLASS]) & ~repeated]
    table = correlations(
        models, chosen, ["method", "formula", "annotation", "part", "threshold"], resamples=resamples, seed=seed, images=images
    )
    names = table["method"].str.replace("_plus_plus", "++").str.replace("_", "-")
    compatible = np.where(table["formula"] == CORRECT, "", " as in torchcam")
    against = np.where(table["annotation"] == BOXES, "", ", masks by " + table["annotation"].str.replace("_", " "))
    few = np.where(table["part"] == "closed", "", table["images"].map(", {:.0f} images".format))
    table.insert(0, "way", names + compatible + against + few)
    is_paper = (table["way"] == table["way"].iloc[0]) & np.isclose(table["threshold"], paper) & np.isclose(paper, PAPER_THRESHOLD)
    return table.assign(published_r=np.where(is_paper, published_pooled(minimum_train_accuracy).get("iou", np.nan), np.nan))


def by_layer(
    models: pd.DataFrame, scores: pd.DataFrame, threshold: float, *, resamples: int, seed: int, images: Images = None
) -> pd.DataFrame:
    """Correlate Grad-CAM and Layer-CAM of every layer, on the sampled images: rows of ``correlations`` by method and layer."""
    size = scores.loc[scores["part"] == "closed", "image_size"].unique()
    chosen = scores[(scores["part"] == "sampled") & scores["method"].isin(LAYER_METHODS) & scores["image_size"].isin(size)]
    chosen = chosen[(chosen["threshold"] == threshold) & (chosen["subset"] == ALL_IMAGES)]
    return correlations(
        models, chosen.sort_values("method", kind="stable"), ["method", "layer"], resamples=resamples, seed=seed, images=images
    )


def by_moment(models: pd.DataFrame, measures: Sequence[str], images: Mapping[str, ArrayLike], resamples: int, seed: int) -> pd.DataFrame:
    """Correlate measures with the gap among the first snapshots of the runs, and among the last.

    Models of the same hyperparameters differ mostly in how long they were trained.

    Returns:
        Rows of ``hyperparameters.subsets`` with the measure; measures that are absent are left out.
    """
    parts = [subsets(models, name, "snapshot", resamples, seed, images).assign(measure=name) for name in measures if name in models]
    names = ["measure", "level", "n", "cells", "pearson_r", "ci_low", "ci_high"]
    return pd.concat(parts, ignore_index=True)[names] if parts else pd.DataFrame(columns=names)


def by_class(
    models: pd.DataFrame, scores: pd.DataFrame, threshold: float, *, resamples: int, seed: int, images: Images = None
) -> pd.DataFrame:
    """Correlate Grad-CAM of the predicted and of the true class, on all, rightly and wrongly classified images.

    Returns:
        Rows of ``correlations`` by class_used and subset; on rightly classified images the two classes are one, so it stands once.
    """
    chosen = of_paper(scores, part="closed", annotation=BOXES, threshold=threshold)
    twice = (chosen["class_used"] == TRUE) & (chosen["subset"] == RIGHT)
    return correlations(models, chosen[~twice], ["class_used", "subset"], resamples=resamples, seed=seed, images=images)


def by_image_size(
    models: pd.DataFrame, scores: pd.DataFrame, threshold: float, *, resamples: int, seed: int, images: Images = None
) -> pd.DataFrame:
    """Correlate Grad-CAM of the same sampled images at several sizes: rows of ``correlations`` by image_size, sorted."""
    last = scores.loc[scores["part"] == "closed", "layer"].unique()
    chosen = of_paper(scores, part="sampled", threshold=threshold, subset=ALL_IMAGES)
    chosen = chosen[chosen["layer"].isin(last)].sort_values("image_size", kind="stable")
    return correlations(models, chosen, ["image_size"], resamples=resamples, seed=seed, images=images)
