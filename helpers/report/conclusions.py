"""Reasons why a study concludes nothing or gives no verdicts, with remedies."""

import numpy as np
import pandas as pd

from helpers.report.style import Tables, count, percent
from helpers.statistics.gap_tables import PAPER_ACCURACY, primary_rows

# Share of networks that did not learn, above which a study answers nothing.
MOST_UNLEARNT = 0.6


def nothing_concluded(tables: Tables) -> str:
    """Reason why a study with networks concludes nothing; "" if it concludes.

    Args:
        tables: of its report, by name.
    """
    catalogue = tables.get("catalogue")
    if catalogue is None:
        return ""
    unlearnt = not_learnt(catalogue)
    if unlearnt:
        return unlearnt
    if "primary" not in tables:
        return (
            "This report holds no primary analysis (table `primary`); run notebook 04 "
            "of it."
        )
    primary = tables["primary"]
    if not len(primary) or primary["baseline"].astype(bool).all():
        return _nothing_analysed(catalogue)
    return ""


def no_verdicts(tables: Tables) -> str:
    """Reason why a primary analysis gives no verdicts; "" if it does."""
    primary = tables["primary"]
    measures = primary[~primary["baseline"].astype(bool)]
    if not np.isfinite(measures["r_gap_low"]).any():
        networks = count(int(measures["n"].max()), "network")
        return (
            f"With {networks} above 80 % training accuracy this study is too small for "
            f"verdicts; its numbers show how a report reads."
        )
    if not len(tables.get("claims", ())):
        return (
            "Nothing was claimed before the first run, so every correlation here is "
            "exploratory."
        )
    return ""


def not_learnt(catalogue: pd.DataFrame | None) -> str:
    """Sentence that too few networks learnt, and the remedy; "" if enough did.

    Args:
        catalogue: rows per network and snapshot, in the order of their names.
    """
    if catalogue is None or not len(catalogue):
        return ""
    last = catalogue.drop_duplicates("run_id", keep="last")  # "stop" follows "first"
    failed = last[
        last["left_out"].astype(str).str.startswith("train accuracy not above")
        | last["snapshot"].eq("none")
    ]
    if len(failed) <= MOST_UNLEARNT * len(last):
        return ""
    low = failed["train_accuracy"].min()
    high = failed["train_accuracy"].max()
    reached = ""
    if np.isfinite(low):
        reached = f" (training accuracy {percent(low)} to {percent(high)})"
    epochs = 2 * int(last["max_epochs"].max())
    return (
        f"{len(failed)} of {count(len(last), 'network')} did not learn enough"
        f"{reached}, "
        f"so nothing is concluded: give them {epochs} epochs (`max_epochs`) or more "
        f"images."
    )


def _nothing_analysed(catalogue: pd.DataFrame) -> str:
    """Reason why a primary analysis has no measure, and the remedy."""
    if not len(catalogue) or primary_rows(catalogue).any():
        return (
            "None of the measures of the primary analysis has a value here, so nothing "
            "is concluded: name others in `primary_measures`, or add their `families`."
        )
    last = catalogue[catalogue["snapshot"].ne("first")]
    networks = count(len(last), "network")
    best = last["train_accuracy"].max()
    highest = f" (the highest: {percent(best)})" if np.isfinite(best) else ""
    return (
        f"None of {networks} reached {percent(PAPER_ACCURACY)} training accuracy on "
        f"right labels{highest}, as the primary analysis asks, so nothing is "
        f"concluded: give them more epochs (`max_epochs`)."
    )
