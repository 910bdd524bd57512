"""The sentence that a reviewer asks for first: how much of a pooled correlation is left when the hyperparameters are held fixed."""

import numpy as np
import pandas as pd

from helpers.confounders import ALL, GIVEN_ALL, GIVEN_ONE, GRANULATED, POOLED
from helpers.readings import count, interval, percent


def _row(table: pd.DataFrame, kind: str, hyperparameter: str = ALL) -> pd.Series | None:
    found = table[(table["kind"] == kind) & (table["hyperparameter"] == hyperparameter)]
    return found.iloc[0] if len(found) and np.isfinite(found["strength"].iloc[0]) else None


def _clear(row: pd.Series) -> bool:
    """Say whether an interval leaves 0 out."""
    return bool(row["ci_low"] > 0 or row["ci_high"] < 0)


def _words(row: pd.Series) -> str:
    return f"{row['strength']:.2f} ({interval(row['ci_low'], row['ci_high'])})"


def confounding_read(table: pd.DataFrame, measure: str, title: str) -> str:
    """Say how much of a measure's pooled correlation with the gap is left given the hyperparameters, and which one takes most away.

    Args:
        table: see ``confounders.confounders``.
        measure: its column.
        title: its name in the sentence.
    """
    own = table[table["measure"] == measure]
    pooled, left = _row(own, POOLED), _row(own, GIVEN_ALL)
    if pooled is None:
        return f"The pooled correlation of {title} with the gap is undefined, so nothing can be said to be left of it."
    text = f"Pooled over {count(int(pooled['n']), 'model')}, {title} has a strength (minus r) of **{_words(pooled)}**"
    single = own[(own["kind"] == GIVEN_ONE) & own["strength"].notna()]
    axes = own.loc[own["kind"] == GIVEN_ONE, "hyperparameter"].nunique()
    if not axes:
        return text + "; no hyperparameter has two levels, so none can be behind it."
    most = single.loc[(single["strength"] * np.sign(pooled["strength"])).idxmin()] if len(single) else None
    alone = f"held fixed alone, {most['hyperparameter']} takes most away and leaves {most['strength']:.2f}" if most is not None else ""
    if left is None:
        text += f"; {count(axes, 'hyperparameter')} leave no degree of freedom for what is left given all of them"
        return text + (f", but {alone}." if alone else ".")
    share = left["strength"] / pooled["strength"]
    given = "the one hyperparameter that varies" if axes == 1 else f"all {axes} hyperparameters"
    part = f", {percent(share)} of it" if 0 <= share <= 1 else ", none of it" if share < 0 else ", all of it and more"
    text += f"; given {given} **{_words(left)}** is left{part if _clear(pooled) else ''}"
    return f"{text}: {_verdict(pooled, left, share)}" + (f"; {alone}." if alone else ".")


def _verdict(pooled: pd.Series, left: pd.Series, share: float) -> str:
    if not np.isfinite(left["ci_low"]):
        return "with too few models for an interval, no claim"
    if not _clear(left):
        if not _clear(pooled):
            return "neither can be told from 0"
        if left["ci_low"] <= pooled["strength"] <= left["ci_high"]:
            return "with these models what is left can be told neither from 0 nor from the pooled strength"
        return "what is left can be told from the pooled strength but not from 0, so the pooled correlation is that of the hyperparameters"
    if not _clear(pooled):
        return "a correlation that the pooled models hide shows when the hyperparameters are held fixed"
    if share < 0:
        return "the correlation turns round when the hyperparameters are held fixed (Simpson's paradox)"
    if share < 0.5:
        return "more than half of the pooled correlation is that of the hyperparameters, but not all"
    return "the hyperparameters are not what makes it"


def field_read(table: pd.DataFrame) -> str:
    """Count the measures whose strength survives, fades or turns round when the hyperparameters are held fixed."""
    wide = table[table["kind"].isin([POOLED, GIVEN_ALL])].set_index(["measure", "kind"])
    rows = [wide.loc[name].reindex([POOLED, GIVEN_ALL]) for name in wide.index.unique("measure")]
    defined = [row for row in rows if row["strength"].notna().all() and row["ci_low"].notna().all()]
    if not defined:
        return "For no measure both the pooled strength and what is left given the hyperparameters can be had with intervals."
    clear = [row for row in defined if _clear(row.loc[POOLED])]
    alike = [row for row in clear if _clear(row.loc[GIVEN_ALL]) and row["strength"].prod() > 0]
    turned = [row for row in clear if _clear(row.loc[GIVEN_ALL]) and row["strength"].prod() < 0]
    lost = len(clear) - len(alike) - len(turned)
    return (
        f"Of {count(len(defined), 'measure')}, {len(clear)} have a pooled interval clear of 0; given all hyperparameters {len(alike)} of "
        f"these keep their sign beyond doubt, {len(turned)} turn round, and {lost} cannot be told from 0 any more."
    )


def granulated_read(table: pd.DataFrame, measure: str, title: str) -> str:
    """State the granulated Kendall of a measure: its mean over the hyperparameters, and the lowest."""
    own = table[(table["measure"] == measure) & (table["kind"] == GRANULATED)].dropna(subset="strength")
    single = own[own["hyperparameter"] != ALL]
    if not len(single):
        return f"No two cells differ in one hyperparameter only, so {title} has no granulated Kendall."
    worst = single.loc[single["strength"].idxmin()]
    mean = own.loc[own["hyperparameter"] == ALL, "strength"].iloc[0]
    return (
        f"While one hyperparameter changes at a time, Kendall's tau of {title} is {mean:.2f} on average (granulated), lowest for "
        f"{worst['hyperparameter']} with {worst['strength']:.2f}."
    )
