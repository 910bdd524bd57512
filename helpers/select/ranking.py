"""A user's checkpoints in order: predicted gap, interval, probability of being the best, and what each of these rests on."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from helpers.select import calibration, prediction
from helpers.select.calibration import Calibration

RANKING_COLUMNS = [
    "rank",
    "checkpoint",
    "architecture",
    "outputs",
    "predicted_gap",
    "gap_low",
    "gap_high",
    "probability_best",
    "rank_low",
    "rank_high",
    "train_accuracy",
    "predicted_test_accuracy",
    "measures_outside",
    "note",
]


class RankingResult(NamedTuple):
    """What a study says of a user's checkpoints, and how well founded it is."""

    ranking: pd.DataFrame  # COLUMNS, the smallest predicted gap first, those without a prediction last
    used: tuple[str, ...]  # measures that the regression was offered
    chosen: tuple[str, ...]  # those that it took, on all of the study's models
    slopes: tuple[float, ...]  # gap per standard deviation of each
    penalty: float
    measured: pd.DataFrame  # see ``calibration.ranges``
    trial: prediction.Trial  # cells left out
    transfer: prediction.Trial  # architectures left out


def rank(
    study: Calibration,
    own: pd.DataFrame,
    facts: pd.DataFrame,
    *,
    images: float = np.inf,
    minimum_train_accuracy: float = 0.8,
    level: float = 0.8,
    draws: int = 1000,
    seed: int = 0,
) -> RankingResult:
    """Predict the gap of every checkpoint from a study, and order them; see ``gap_prediction`` for how and why.

    Args:
        study: the calibration.
        own: one row per checkpoint, a column per measure; see ``scores.wide``.
        facts: one row per checkpoint: checkpoint, architecture, outputs, fault.
        images: that the checkpoints were scored on; their training accuracies are no surer than so many allow.
        minimum_train_accuracy: the study's.
        level: of the intervals.
        draws: of the bootstrap behind the probabilities.
        seed: of the draws.

    Returns:
        The verdict. A checkpoint that fits its training images no better than what the study leaves out stands after all others, since its
        gap is small for another reason; the probabilities are among the others, where there are any. Fractions throughout. NaN where
        undefined: for a checkpoint that could not be scored, and for all where the study has fewer than 4 cells or shares no defined
        measure with the checkpoints.
    """
    scored = own.loc[facts.loc[facts["fault"] == "", "checkpoint"]]
    measured = calibration.ranges(study, scored)
    used = calibration.usable(measured, len(scored))
    if used and len(study.models):
        values, gap, cells = study.models[used].to_numpy(dtype=float), study.models["gap"].to_numpy(), study.models["cell"].to_numpy()
    else:
        used, values, gap, cells = [], np.empty((0, 0)), np.empty(0), np.empty(0, dtype=object)
    train = scored["training_accuracy"].to_numpy(dtype=float) if "training_accuracy" in scored else np.full(len(scored), np.nan)
    fits = ~(train <= minimum_train_accuracy)  # unknown is no reason to stand behind
    compared = fits if fits.any() else np.ones(len(fits), dtype=bool)
    table = _predicted(values, gap, cells, scored[used].to_numpy(dtype=float), train, compared, images, level, draws, seed)
    table.insert(0, "checkpoint", scored.index)
    table["measures_outside"] = _outside(study, scored, used)
    table = facts.merge(table, on="checkpoint", how="left").sort_values(["behind", "guess"], na_position="last", kind="stable")
    order = list(zip(table["behind"].fillna(1), table["guess"], strict=True))
    table["rank"] = [np.nan if np.isnan(guess) else 1.0 + sum(other < (behind, guess) for other in order) for behind, guess in order]
    table["predicted_test_accuracy"] = table["train_accuracy"] - table["predicted_gap"]
    table["note"] = [_note(row, minimum_train_accuracy) for row in table.itertuples()]
    fitted = prediction.fit(values, gap)
    tried = [
        prediction.coverage(values, gap, cells, groups, study.models["train_accuracy"].to_numpy()[: len(gap)], level)
        for groups in (cells, study.models["architecture"].to_numpy()[: len(gap)])
    ]
    chosen = tuple(used[column] for column in fitted.chosen)
    return RankingResult(
        table[RANKING_COLUMNS].reset_index(drop=True), tuple(used), chosen, tuple(fitted.slopes), fitted.penalty, measured, *tried
    )


def _predicted(
    values: np.ndarray,
    gap: np.ndarray,
    cells: np.ndarray,
    own: np.ndarray,
    train: np.ndarray,
    compared: np.ndarray,
    images: float,
    level: float,
    draws: int,
    seed: int,
) -> pd.DataFrame:
    columns = ["guess", "predicted_gap", "gap_low", "gap_high", "probability_best", "rank_low", "rank_high"]
    table = pd.DataFrame(np.nan, index=range(len(own)), columns=columns).assign(train_accuracy=train, behind=(~compared).astype(float))
    if len(gap) and len(np.unique(cells)) >= prediction.FEWEST and len(own):
        guess = prediction.predict_gap(prediction.fit(values, gap), own)
        table["guess"] = guess
        table["predicted_gap"] = prediction.possible(guess[:, None], train)[:, 0]
        table[["gap_low", "gap_high"]] = prediction.possible(prediction.intervals(values, gap, cells, own, level), train, images)
        unknown = np.full(len(own), np.nan)  # a bound by an accuracy must not decide an order that is about the gap
        ranks = prediction.rank_probabilities(values, gap, cells, own[compared], unknown[compared], draws=draws, seed=seed)
        table.loc[compared, ["probability_best", "rank_low", "rank_high"]] = np.column_stack(ranks)
    return table


def _outside(study: Calibration, scored: pd.DataFrame, used: list[str]) -> np.ndarray:
    """Count, of the measures on offer, those of each checkpoint that lie outside the study's range."""
    theirs, ours = study.models[used], scored[used]
    return ((ours < theirs.min()) | (ours > theirs.max())).sum(axis=1).to_numpy(dtype=float)


def _note(row: tuple, minimum: float) -> str:
    if row.fault:
        return f"not scored: {row.fault}"
    notes = []
    if np.isnan(row.predicted_gap):
        notes.append("no prediction: the study and this checkpoint share no defined measure, or the study is too small")
    if np.isnan(row.train_accuracy):
        notes.append("training accuracy unknown")
    elif row.train_accuracy <= minimum:
        notes.append(f"training accuracy not above {minimum:.0%}: the study has no such models")
    if row.measures_outside:
        notes.append(f"{row.measures_outside:.0f} measures outside the calibrated range")
    return "; ".join(notes)
