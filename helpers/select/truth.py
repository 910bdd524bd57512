"""How the predictions did where the truth is known: models of a study judged as if they were a user's."""

import numpy as np
import pandas as pd

from helpers.report.style import count, percent, points
from helpers.select.report import code

TRUTH_COLUMNS = ["judged", "calibration", "level", "models", "predicted", "inside", "share", "mean_error", "best_ranked"]
_GAP, _ACCURACY = "gap", "test accuracy"


def truth_table(
    ranking: pd.DataFrame,
    truth: pd.Series,
    *,
    calibration: str,
    level: float,
    target: pd.DataFrame | None = None,
    target_truth: pd.Series | None = None,
) -> pd.DataFrame:
    """Hold predictions against the truth.

    Args:
        ranking: checkpoint, predicted_gap, gap_low, gap_high (fractions), see ``ranking.rank``; NaN where no number is given.
        truth: true gap by checkpoint.
        calibration: name of the study that predicts.
        level: of the intervals.
        target: checkpoint, predicted_accuracy, accuracy_low, accuracy_high, see ``target.predict_on_target``.
        target_truth: true accuracy by checkpoint.

    Returns:
        ``TRUTH_COLUMNS``, a row for the gap and one for accuracy on the target where that is predicted: how many models there are, how
        many get a number, how many of these lie in their interval and what share that is, the mean absolute error (a fraction), and
        the place among them, by the prediction, of the one that truly is best. NaN where no model gets a number.
    """
    rows = [_held(_GAP, ranking, truth, ("predicted_gap", "gap_low", "gap_high"), largest=False)]
    if target is not None and target_truth is not None:
        rows.append(_held(_ACCURACY, target, target_truth, ("predicted_accuracy", "accuracy_low", "accuracy_high"), largest=True))
    return pd.DataFrame(rows).assign(calibration=calibration, level=level)[TRUTH_COLUMNS]


def _held(name: str, table: pd.DataFrame, truth: pd.Series, columns: tuple[str, str, str], *, largest: bool) -> dict[str, object]:
    known = table.assign(truth=table["checkpoint"].map(truth).astype(float)).dropna(subset=["truth", *columns])
    predicted, low, high = (known[column] for column in columns)
    found = {"judged": name, "models": len(table), "predicted": len(known)}
    if not len(known):
        return found | {"inside": 0, "share": np.nan, "mean_error": np.nan, "best_ranked": np.nan}
    inside = known["truth"].between(low, high)
    best = known["truth"].idxmax() if largest else known["truth"].idxmin()
    place = predicted.rank(method="min", ascending=not largest).loc[best]
    return found | {
        "inside": int(inside.sum()),
        "share": float(inside.mean()),
        "mean_error": float((predicted - known["truth"]).abs().mean()),
        "best_ranked": float(place),
    }


def say_truth(table: pd.DataFrame) -> str:
    """Sentence on how the predictions of a ``truth_table`` did, with what they cannot know."""
    said = []
    for row in table.itertuples():
        what, best = ("accuracies on the target", "largest") if row.judged == _ACCURACY else ("true gaps", "smallest")
        if not row.predicted:
            said.append(f"none of {count(row.models, 'model')} has a predicted and a true {row.judged}")
            continue
        without = f" ({row.models - row.predicted} more get no number)" if row.models > row.predicted else ""
        said.append(
            f"{row.inside} of {row.predicted} {what} ({percent(row.share)}) lie in their {row.level:.0%} interval{without}, off by "
            f"{points(row.mean_error)} on average, and the {best} was ranked {row.best_ranked:.0f} of {row.predicted}"
        )
    calibration = code(table["calibration"].iloc[0])
    return f"The calibration, {calibration}, does not know these models, and the truth is known here: {'; '.join(said)}."
