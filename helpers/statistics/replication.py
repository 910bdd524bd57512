"""Each claim of the paper beside this study: published, ours with its interval, and whether it holds, does not, or cannot be told."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from helpers.statistics import published
from helpers.statistics.hyperparameters import GIVEN_ALL, confounders
from helpers.statistics.resampling import difference_table
from helpers.statistics.tables import TOTAL, correlation_table, selection_table

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot tell"


CLAIM_COLUMNS = ["claim", "source", "published", "ours", "ci_low", "ci_high", "n", "verdict", "table"]


_RIVALS = {"nuclear_norm": "the nuclear norm", "effective_invariance": "Effective Invariance", "spectral_norm": "the spectral norm"}


_TITLES = {"iou": "IoU", "iou_b": "IoU-B"}


# An interval this wide or narrower that holds 0 says that a correlation is weak; a wider one says nothing.
_WEAK = 0.5


class Sampling(NamedTuple):
    """How intervals are drawn."""

    accuracy: float  # models above this training accuracy
    resamples: int
    seed: int


def judged(low: float, high: float, bound: float, side: int) -> str:
    """Judge a claim by its interval.

    Args:
        low: of the interval.
        high: of the interval.
        bound: what the claim compares with.
        side: -1 when it says below, +1 when it says above, 0 when it says that there is nothing.

    Returns:
        "holds" when the whole interval lies where the claim says, "does not hold" when it lies on the other side, else "cannot tell".
        A claim of nothing holds when the interval contains the bound and no value further than 0.5 away from it.
    """
    if not (np.isfinite(low) and np.isfinite(high)):
        return UNKNOWN
    if side == 0:
        if low <= bound <= high:
            return HOLDS if max(bound - low, high - bound) <= _WEAK else UNKNOWN
        return FAILS
    below, above = high < bound, low > bound
    agrees, contradicts = (below, above) if side < 0 else (above, below)
    return HOLDS if agrees else FAILS if contradicts else UNKNOWN


def _claim(claim: str, source: str, theirs: float, row: Mapping[str, float], value: str, table: str, bound: float, side: int) -> dict:
    low, high = row.get("ci_low", row.get("low", np.nan)), row.get("ci_high", row.get("high", np.nan))
    facts = {"claim": claim, "source": source, "published": theirs, "ours": row[value], "ci_low": low, "ci_high": high, "n": row["n"]}
    return facts | {"verdict": judged(low, high, bound, side), "table": table}


def of_correlation(models: pd.DataFrame, sampling: Sampling) -> list[dict]:
    """IoU and IoU-B fall where the gap grows, pooled and in every architecture (Du et al. 2024, Table 3)."""
    options = {"resamples": sampling.resamples, "kendall_resamples": 0, "seed": sampling.seed}
    ours = correlation_table(models, list(_TITLES), [sampling.accuracy], **options)
    theirs = published.du2024_table3().set_index(["architecture", "method", "threshold"])["pearson_r"]
    rows = []
    for _, row in ours.sort_values("architecture", key=lambda names: names != TOTAL, kind="stable").iterrows():
        place = "pooled" if row["architecture"] == TOTAL else f"in {row['architecture']}"
        known = theirs.get((row["architecture"], row["measure"], sampling.accuracy), np.nan)
        claim = f"{_TITLES[row['measure']]} is larger where the gap is smaller, {place} (r below 0)"
        rows.append(_claim(claim, "Table 3", known, row, "pearson_r", "table3_correlations", 0.0, -1))
    return rows


def of_rivals(models: pd.DataFrame, directions: Mapping[str, int], sampling: Sampling) -> list[dict]:
    """IoU tells the gap better than the other methods (Du et al. 2024, Table 3): the paired difference of the strengths, minus r."""
    kept = models[models["train_accuracy"] > sampling.accuracy]
    rivals = {name: directions[name] for name in ("iou", *_RIVALS) if name in kept}
    if "iou" not in rivals or len(rivals) < 2:
        return []
    table = difference_table(kept, rivals, reference="iou", statistic="pearson", resamples=sampling.resamples, seed=sampling.seed)
    theirs = published.du2024_table3()
    pooled = theirs[(theirs["architecture"] == TOTAL) & (theirs["threshold"] == sampling.accuracy)].set_index("method")["pearson_r"]
    rows = []
    for _, row in table[table["measure"] != "iou"].iterrows():
        name = row["measure"]
        known = -directions[name] * pooled.get(name, np.nan) + pooled.get("iou", np.nan)
        claim = f"IoU tells the gap better than {_RIVALS[name]} (difference of strengths below 0)"
        rows.append(_claim(claim, "Table 3", known, row, "difference", "table3_correlations", 0.0, -1))
    return rows


def of_selection(models: pd.DataFrame, sampling: Sampling) -> list[dict]:
    """Of two models, the one with the larger IoU has the smaller gap more often than by chance (Du et al. 2024, Table 4)."""
    ours = selection_table(models, dict.fromkeys(_TITLES, 1), [sampling.accuracy], resamples=sampling.resamples, seed=sampling.seed)
    theirs = published.du2024_table4().set_index(["architecture", "method", "threshold"])["accuracy_percent"] / 100
    rows = []
    for _, row in ours[ours["architecture"] == TOTAL].iterrows():
        claim = f"Of two models, the one with the larger {_TITLES[row['measure']]} has the smaller gap (above one half of the pairs)"
        known = theirs.get((TOTAL, row["measure"], sampling.accuracy), np.nan)
        rows.append(_claim(claim, "Table 4", known, row, "accuracy", "table4_selection", 0.5, 1))
    return rows


def of_ablations(tables: Mapping[str, pd.DataFrame], accuracy: float) -> list[dict]:
    """Read the paper's robustness claims from the tables of notebook 05 (Du et al. 2024, Tables 5 to 7, and its text on label noise).

    Args:
        tables: name to table, of table5_validity, table6_cam_methods, table7_saliency and ablation_label_noise those that there are.
        accuracy: training accuracy above which models count.
    """
    rows = []
    if "table5_validity" in tables:
        pooled = tables["table5_validity"].query("architecture == @TOTAL").iloc[0]
        claim = "Among untrained networks IoU tells nothing (r is 0)"
        rows.append(_claim(claim, "Table 5", pooled["published_r"], pooled, "pearson_r", "table5_validity", 0.0, 0))
    if "table6_cam_methods" in tables:
        table = tables["table6_cam_methods"]
        chosen = table[(table["architecture"] == "resnet18") & (table["threshold"] == accuracy) & table["published_r"].notna()]
        # The same method on all images stands for it; the paper's own library is the one with its faults.
        chosen = chosen.sort_values("images", ascending=False, kind="stable").drop_duplicates(["method", "formula"])
        for _, row in chosen.iterrows():
            name = f"{row['method'].replace('_plus_plus', '++').replace('_', ' ')} ({row['formula']} formula)"
            claim = f"In ResNet-18 the overlap of {name} is larger where the gap is smaller (r below 0)"
            rows.append(_claim(claim, "Table 6", row["published_r"], row, "pearson_r", "table6_cam_methods", 0.0, -1))
    if "table7_saliency" in tables:
        table = tables["table7_saliency"].query("architecture == 'resnet18' and threshold == @accuracy and method == 'saliency_masks'")
        for _, row in table.iterrows():
            claim = "In ResNet-18 masks made without labels do in place of boxes (r below 0)"
            rows.append(_claim(claim, "Table 7", row["published_r"], row, "pearson_r", "table7_saliency", 0.0, -1))
    if "ablation_label_noise" in tables:
        noisy = tables["ablation_label_noise"]
        for _, row in noisy[noisy["level"].astype(float) > 0].iterrows():
            claim = f"With {float(row['level']):.0%} wrong training labels IoU is still larger where the gap is smaller (r below 0)"
            rows.append(_claim(claim, "text", np.nan, row, "pearson_r", "ablation_label_noise", 0.0, -1))
    return rows


def of_confounding(models: pd.DataFrame, axes: list[str], sampling: Sampling) -> list[dict]:
    """Ask what the paper does not: is anything left of the pooled correlation when all hyperparameters are held fixed."""
    kept = models[models["train_accuracy"] > sampling.accuracy]
    table = confounders(kept, {"iou": 1}, axes, resamples=sampling.resamples, seed=sampling.seed)
    given = table[table["kind"] == GIVEN_ALL]
    claim = "What IoU tells is more than the hyperparameters (strength given all of them above 0)"
    return [_claim(claim, "not in the paper", np.nan, row, "strength", "confounders", 0.0, 1) for _, row in given.iterrows()]


def claims(
    models: pd.DataFrame, directions: Mapping[str, int], tables: Mapping[str, pd.DataFrame], axes: list[str], sampling: Sampling
) -> pd.DataFrame:
    """List every claim with its verdict: ``COLUMNS``, r, differences and fractions as they are, NaN where there is no value.

    Args:
        models: catalogue joined with the measures, see ``models.with_measures``.
        directions: measure to +1 or -1.
        tables: of notebook 05, see ``of_ablations``.
        axes: hyperparameters with more than one level.
        sampling: see there.
    """
    rows = [*of_correlation(models, sampling), *of_rivals(models, directions, sampling), *of_selection(models, sampling)]
    rows += [*of_ablations(tables, sampling.accuracy), *of_confounding(models, axes, sampling)]
    return pd.DataFrame(rows, columns=CLAIM_COLUMNS)
