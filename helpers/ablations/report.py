"""What notebook 05 says in words: labels of choices, and sentences whose numbers come from the table that they stand below."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers.ablations.attributions import CAM
from helpers.ablations.tables import AS_PROMISED, NOT_TOLD
from helpers.report.style import count, percent, points, with_interval
from helpers.statistics import hyperparameters
from helpers.statistics.tables import TOTAL
from helpers.statistics.verdicts import NEGLIGIBLE

_METHODS = {"grad_cam": "Grad-CAM", "grad_cam_plus_plus": "Grad-CAM++", "smooth_grad_cam_plus_plus": "Smooth Grad-CAM++"}
_METHODS |= {"layer_cam": "Layer-CAM", "eigen_cam": "Eigen-CAM", "score_cam": "Score-CAM", "guided_grad_cam": "guided Grad-CAM"}
_METHODS |= {"input_x_gradient": "input x gradient", "deep_lift": "DeepLift"}


def way(method: str, formula: str = "") -> str:
    """A way to compute a map, for a reader."""
    name = _METHODS.get(method, method.replace("_", " "))
    return f"{name} as torchcam computes it" if formula == "torchcam" else name


def lowest(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at the lowest training accuracy."""
    return table[table["threshold"] == table["threshold"].min()].reset_index(drop=True)


def pooled(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of all architectures together, or of the only one, at the lowest training accuracy."""
    rows = lowest(table)
    return rows[rows["architecture"] == rows["architecture"].iloc[-1]].reset_index(drop=True)


def distinct(table: pd.DataFrame) -> pd.DataFrame:
    """Rows whose map is not that of another row on the same images: only these say something of their own."""
    return table[table["same_map_as"] == ""].reset_index(drop=True)


def ways(table: pd.DataFrame) -> pd.Series:
    """Name of each row of table 6: architecture, way to compute a map, and on how many images a model."""
    parts = zip(table["architecture"].replace(TOTAL, "all"), table["method"], table["formula"], table["images"], strict=True)
    return pd.Series([f"{place}, {way(method, formula)}, {images:,.0f} images" for place, method, formula, images in parts])


def choices(table: pd.DataFrame, labels: Sequence[str]) -> str:
    """The lowest and highest r of a table of choices, and on which side of 0 the intervals lie."""
    rows = table.assign(label=list(labels)).dropna(subset="pearson_r")
    if not len(rows):
        return "No correlation is defined: too few models."
    low, high = rows.loc[rows["pearson_r"].idxmin()], rows.loc[rows["pearson_r"].idxmax()]
    ends = " to ".join(
        f"{with_interval(row['pearson_r'], row['ci_low'], row['ci_high'])} with {row['label']}" for row in (low, high)[: len(rows)]
    )
    below, above, told = (rows["ci_high"] < 0).sum(), (rows["ci_low"] > 0).sum(), rows["ci_low"].notna().sum()
    return f"r from {ends}. Of {count(int(told), 'interval')} {below} lie below 0, where the paper expects them, and {above} above."


def same_maps(table: pd.DataFrame) -> str:
    """Which ways of table 6 give one map."""
    rows = pooled(table)
    twins = [
        f"{way(row.method, row.formula)} is {way(*row.same_map_as.rstrip(')').split(' ('))}"
        for row in rows[rows["same_map_as"] != ""].itertuples()
    ]
    return f"One map under two names: {'; '.join(twins)}." if twins else "No two ways give the same map."


def attributions(table: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Whether attributions that are no CAM go with the gap by the same score; see ``attributions_compared``."""
    parts = []
    for measure, rows in table.set_index("method").groupby("measure", sort=False):
        cam, others = rows.loc[CAM], rows.drop(CAM).dropna(subset="ci_low")
        side = np.sign(cam["pearson_r"])
        alike = ((others["ci_low"] > 0) & (side > 0) | (others["ci_high"] < 0) & (side < 0)).sum()
        apart = ((others["minus_cam_low"] > 0) | (others["minus_cam_high"] < 0)).sum()
        r = with_interval(cam["pearson_r"], cam["ci_low"], cam["ci_high"])
        parts.append(
            f"{titles[measure]}: Grad-CAM {r}; of {count(len(others), 'other')} {alike} clear of 0 on its side, {apart} apart from it"
        )
    undefined = table[table["reason"] != ""].drop_duplicates("method")
    return ". ".join([*parts, *(f"{way(row.method)} is undefined for some models: {row.reason}" for row in undefined.itertuples())]) + "."


def untrained(table: pd.DataFrame) -> str:
    """Whether the overlap of untrained networks goes with their gap, as it must not; see ``validity``."""
    row = table[table["architecture"] == TOTAL].iloc[0]
    verdict = {
        "nothing": f"the whole interval lies within ±{NEGLIGIBLE:g}, so without learning the overlap tells nothing, as it must",
        "something": "the interval leaves 0 out, so an overlap without learning tells the gap, which a valid measure must not",
        "cannot tell": f"the interval is neither within ±{NEGLIGIBLE:g} nor clear of 0, so nothing is shown",
    }[row["tells"]]
    return (
        f"{count(int(row['n']), 'untrained network')}, training accuracy {percent(row['train_accuracy'])}: "
        f"r = {with_interval(row['pearson_r'], row['ci_low'], row['ci_high'])}; {verdict}. "
        f"By the same rule the paper's {row['published_r']:.2f} tells: {row['published_tells']}."
    )


def machine_masks(quality: pd.DataFrame) -> str:
    """How each provider's masks stand to the boxes, beside a mask over the whole image (the floor); see ``masks.mask_quality``."""
    each = [
        f"{row.provider.replace('_', ' ')} {row.box_iou:.3f}{' (**below the floor**)' if row.box_iou < row.whole_image_floor else ''}"
        for row in quality.itertuples()
    ]
    return f"Mean IoU with the boxes, where the whole image has {quality['whole_image_floor'].max():.3f}: {', '.join(each)}."


def held_fixed(table: pd.DataFrame, titles: Mapping[str, str], measures: Sequence[str]) -> str:
    """r of some measures with the gap, pooled and given all hyperparameters; see ``hyperparameters.confounders``."""
    parts = []
    for measure in measures:
        rows = table[table["measure"] == measure].drop_duplicates("kind").set_index("kind")
        found = [
            with_interval(*rows.loc[kind, ["r", "ci_low", "ci_high"]])
            for kind in (hyperparameters.POOLED, hyperparameters.GIVEN_ALL)
            if kind in rows.index
        ]
        parts.append(f"{titles[measure]}: {', given all hyperparameters '.join(found)}")
    return f"r with the gap, pooled. {'; '.join(parts)}." if parts else "No measure is held against the hyperparameters."


def wrong_labels(moved: pd.DataFrame, measures: Sequence[str]) -> str:
    """What wrong labels do to the gap in pairs that differ in nothing else, and how many measures move as promised; see ``shifts``."""
    own = moved[moved["measure"].isin(measures) & (moved["n"] > 0)]
    if not len(own):
        return "No two models of this study differ in their labels alone, so what wrong labels do to a measure is not tested here."
    gaps = [f"{percent(float(row.level))} wrong: {points(row.change)}" for row in moved[moved["measure"] == "gap"].itertuples()]
    kept = own["kept"].value_counts()
    return (
        f"The gap moves, with {'; '.join(gaps)}. Of {count(len(own), 'shift')} of measures {kept.get(AS_PROMISED, 0)} go as their r with "
        f"the gap among models of right labels promises, {len(own) - kept.get(AS_PROMISED, 0) - kept.get(NOT_TOLD, 0)} the other way."
    )


def survival(tables: Mapping[str, pd.DataFrame], baseline: float) -> str:
    """Under how many other choices r keeps the sign that it has at the paper's setting, by kind of choice."""
    defined = {name: table["pearson_r"].dropna() for name, table in tables.items()}
    every = pd.concat(list(defined.values()))
    if not np.isfinite(baseline) or not len(every):
        return "At the paper's setting, or at all others, the correlation is undefined, so it cannot be said to survive or not."
    alike = {name: int((np.sign(r) == np.sign(baseline)).sum()) for name, r in defined.items()}
    each = ", ".join(f"{name} {alike[name]} of {len(r)}" for name, r in defined.items())
    return (
        f"At the paper's setting r is **{baseline:.2f}**; under {sum(alike.values())} of {count(len(every), 'choice')} it has the same "
        f"sign ({each}), and it runs from {every.min():.2f} to {every.max():.2f}."
    )
