"""A user's checkpoints in order: predicted gap, interval, probability of being the best, and what each of these rests on."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from helpers.select import calibration, prediction
from helpers.select.calibration import Calibration
from helpers.select.moved import Moved, moved_together, residual_spread
from helpers.statistics.labelling import against_labelling

RANKING_COLUMNS = [
    "rank",
    "verdict",
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

# What became of a file: placed among others, given a prediction without a place, or neither, and then why.
RANKED, JUDGED, NOT_JUDGED, NOT_SCORED, PASSED_OVER = "ranked", "judged", "not judged", "not scored", "passed over"


class RankingResult(NamedTuple):
    """What a study says of a user's checkpoints, and how well founded it is."""

    ranking: pd.DataFrame  # RANKING_COLUMNS, every file: the smallest predicted gap first, those without a prediction last
    used: tuple[str, ...]  # measures that the regression was offered
    chosen: tuple[str, ...]  # those that it took, on all of the study's models
    slopes: tuple[float, ...]  # gap per standard deviation of each
    penalty: float
    measured: pd.DataFrame  # see ``calibration.ranges``
    trial: prediction.Trial  # cells left out
    transfer: prediction.Trial  # architectures left out
    differing: tuple[str, ...]  # in what the case differs from the study
    unfit: Mapping[str, str]  # checkpoints whose training accuracy is of no model that a study speaks of, and why
    moved: Moved | None  # accuracies moved together by labelled images; None without them
    labels: pd.DataFrame  # what the prediction errs in the study beside what labels err, see ``labelling.against_labelling``


def rank(
    study: Calibration,
    own: pd.DataFrame,
    facts: pd.DataFrame,
    *,
    images: float = np.inf,
    minimum_train_accuracy: float = 0.8,
    differing: Sequence[str] = (),
    right: pd.DataFrame | None = None,
    level: float = 0.8,
    draws: int = 1000,
    seed: int = 0,
) -> RankingResult:
    """Checkpoints in the order of the gap that a study predicts of them; see ``prediction`` for how and why.

    Args:
        study: the calibration.
        own: one row per checkpoint, a column per measure; see ``scores.wide``.
        facts: one row per file: checkpoint, architecture, outputs, fault.
        images: that the checkpoints were scored on; their training accuracies are no surer than so many allow.
        minimum_train_accuracy: the study's.
        differing: in what the case differs from the study, see ``calibration.differing``.
        right: (checkpoint x labelled image) bool, which move all predictions together; see ``moved.moved_together``.
        level: of the intervals.
        draws: of the bootstrap behind the probabilities.
        seed: of the draws.

    Returns:
        The verdict, with a row for every file. A checkpoint is not judged, and has no numbers, where its training accuracy is at chance
        or below those of the study's models, or where all measures that the prediction rests on lie outside the study's range. Where the
        case differs, or some of the measures lie outside, the level of the predictions is not to be trusted: without labelled images such
        a checkpoint has a place in the order and no gap. One that is alone, or told apart from no other, has no rank. Fractions
        throughout. NaN where undefined, and for all where the study has fewer than 4 cells or shares no defined measure with them.
    """
    scored = own.loc[facts.loc[facts["fault"] == "", "checkpoint"]]
    train = scored["training_accuracy"].to_numpy(dtype=float) if "training_accuracy" in scored else np.full(len(scored), np.nan)
    outputs = facts.set_index("checkpoint").loc[scored.index, "outputs"].to_numpy()
    low = _lowest(study, minimum_train_accuracy)
    why = [_misfit(share, number, images, minimum_train_accuracy, low) for share, number in zip(train, outputs, strict=True)]
    unfit = {name: reason for name, reason in zip(scored.index, why, strict=True) if reason}
    fitting = np.array([not reason for reason in why], dtype=bool)
    measured = calibration.ranges(study, scored[fitting] if fitting.any() else scored)
    used = calibration.usable(measured, int(fitting.sum()) or len(scored)) if len(study.models) else []
    models = study.models if used else study.models[:0]
    values, gap, cells = models[used].to_numpy(dtype=float), models["gap"].to_numpy(dtype=float), models["cell"].to_numpy()
    fitted = prediction.fit(values, gap)
    chosen = [used[column] for column in fitted.chosen]
    far = _outside(study, scored, chosen)
    reason = f"all measures that the prediction rests on ({', '.join(chosen)}) lie outside the range of the study's models"
    why = [old or (reason if chosen and outside == len(chosen) else "") for old, outside in zip(why, far, strict=True)]
    judged = np.array([not reason for reason in why], dtype=bool)
    table = pd.DataFrame({"checkpoint": scored.index, "train_accuracy": train, "why": why, "doubtful": (far > 0) | bool(differing)})
    table[_PREDICTED] = np.nan
    moved = None
    if len(np.unique(cells)) >= prediction.FEWEST and judged.any():
        theirs, mine = (values, gap, cells), table[judged]
        table.loc[judged, _PREDICTED] = _predicted(*theirs, scored.loc[judged, used], mine, images, level, draws, seed)
        if right is not None:
            table, moved = _moved(table, models, used, right, level)
        else:
            table.loc[table["doubtful"], ["predicted_gap", "gap_low", "gap_high"]] = np.nan
    table["measures_outside"] = _outside(study, scored, used)
    tried = [
        prediction.coverage(values, gap, cells, groups, models["train_accuracy"].to_numpy(), level)
        for groups in (cells, models["architecture"].to_numpy())
    ]
    rests_on = tuple(used), tuple(chosen), tuple(fitted.slopes), fitted.penalty
    ranking = _placed(facts.merge(table, on="checkpoint", how="left"), chosen, differing, moved)
    return RankingResult(ranking, *rests_on, measured, *tried, tuple(differing), unfit, moved, _against_labels(models, used))


_PREDICTED = ["guess", "predicted_gap", "gap_low", "gap_high", "probability_best", "rank_low", "rank_high"]


def _placed(table: pd.DataFrame, chosen: Sequence[str], differing: Sequence[str], moved: Moved | None) -> pd.DataFrame:
    """Every file with its rank, verdict and note, the smallest guess first."""
    table = table.sort_values("guess", na_position="last", kind="stable")
    guess = table["guess"].round(9)  # so that copies of one network are equal
    table["rank"] = guess.rank(method="min") if guess.nunique() > 1 else np.nan
    table.loc[table["rank"].isna(), ["probability_best", "rank_low", "rank_high"]] = np.nan
    table["predicted_test_accuracy"] = table["train_accuracy"] - table["predicted_gap"]
    table["verdict"] = [_verdict(row) for row in table.itertuples()]
    table["note"] = [_note(row, chosen, differing, moved) for row in table.itertuples()]
    return table[RANKING_COLUMNS].reset_index(drop=True)


def _moved(
    table: pd.DataFrame, models: pd.DataFrame, used: list[str], right: pd.DataFrame, level: float
) -> tuple[pd.DataFrame, Moved | None]:
    """The table with all predictions moved together by what labelled images show of those whose training accuracy is known."""
    known = table["guess"].notna() & table["train_accuracy"].notna() & table["checkpoint"].isin(right.index)
    table.loc[~known, ["predicted_gap", "gap_low", "gap_high"]] = np.nan
    if not known.any():
        return table, None
    share = table.loc[known, "train_accuracy"].to_numpy()
    kinds = models["architecture" if models["architecture"].nunique() > 1 else "cell"]
    residuals = prediction.left_out_predictions(models[used], models["gap"], kinds, models[used][:0])[0]
    spread = np.nan_to_num(residual_spread(residuals, models["architecture"]))
    seen = right.loc[table.loc[known, "checkpoint"]].to_numpy(dtype=bool)
    moved = moved_together(share - table.loc[known, "guess"].to_numpy(), seen, spread=spread, level=level)
    table.loc[known, ["predicted_gap", "gap_low", "gap_high"]] = share[:, None] - np.column_stack([moved.accuracy, moved.high, moved.low])
    return table, moved


def _against_labels(models: pd.DataFrame, used: list[str], labelled: int = 50) -> pd.DataFrame:
    """What the prediction errs on test images of the study, cells left out, beside what labelled images err."""
    truth = (models["train_accuracy"] - models["gap"]).clip(0, 1)
    if models["cell"].nunique() < prediction.FEWEST:
        return pd.DataFrame(columns=["method", "error", "labelled_images", "worth_more"])
    residuals = prediction.left_out_predictions(models[used], models["gap"], models["cell"], models[used][:0])[0]
    return against_labelling(pd.DataFrame({_METHOD: truth + residuals}), truth, labelled=labelled)


_METHOD = "measures of training images"


def _lowest(study: Calibration, minimum: float) -> float:
    """The smallest training accuracy that the study has."""
    return max(minimum, float(study.models["train_accuracy"].min())) if len(study.models) else minimum


def _misfit(share: float, outputs: int, images: float, minimum: float, lowest: float) -> str:
    """Why a training accuracy is of no model that the study could speak of; "" where it may be. Unknown is no reason."""
    if np.isnan(share):
        return ""
    chance = 1 / max(1, outputs)
    # Two standard errors of a share of so many images.
    if share <= chance + 2 * np.sqrt(chance * (1 - chance) / images):
        return f"training accuracy {share:.0%} is that of chance ({chance:.0%} with {outputs} classes); {_ADVICE}"
    if share <= minimum or share + 2 * np.sqrt(share * (1 - share) / images) < lowest:
        return f"training accuracy {share:.0%} is below that of the study's models ({lowest:.0%} and more); {_ADVICE}"
    return ""


_ADVICE = "check that it is trained, the order of the classes, normalisation and image size"


def _predicted(
    values: np.ndarray,
    gap: np.ndarray,
    cells: np.ndarray,
    own: pd.DataFrame,
    judged: pd.DataFrame,
    images: float,
    level: float,
    draws: int,
    seed: int,
) -> np.ndarray:
    """``_PREDICTED`` (m, 7) of the checkpoints that are judged, which have train_accuracy and doubtful."""
    fresh, train, doubtful = own.to_numpy(dtype=float), judged["train_accuracy"].to_numpy(), judged["doubtful"].to_numpy()
    guess = prediction.predict_gap(prediction.fit(values, gap), fresh)
    likely = prediction.possible(guess[:, None], train)
    span = prediction.possible(prediction.intervals(values, gap, cells, fresh, level), train, images)
    unknown = np.full(len(fresh), np.nan)  # a bound by an accuracy must not decide an order that is about the gap
    ranks = prediction.rank_probabilities(values, gap, cells, fresh, unknown, doubtful=doubtful, draws=draws, seed=seed)
    return np.column_stack([guess, likely, span, *ranks])


def _outside(study: Calibration, scored: pd.DataFrame, used: list[str]) -> np.ndarray:
    """Count, of some measures, those of each checkpoint that lie outside the study's range."""
    theirs, ours = study.models[used], scored[used]
    return ((ours < theirs.min()) | (ours > theirs.max())).sum(axis=1).to_numpy(dtype=float)


def _verdict(row: tuple) -> str:
    if row.fault:
        return PASSED_OVER if row.fault.startswith(PASSED_OVER) else NOT_SCORED
    if np.isnan(row.rank):
        return NOT_JUDGED if np.isnan(row.predicted_gap) else JUDGED
    return RANKED


def _note(row: tuple, chosen: Sequence[str], differing: Sequence[str], moved: Moved | None) -> str:
    if row.fault:
        return row.fault if row.verdict == PASSED_OVER else f"not scored: {row.fault}"
    if row.why:
        return f"not judged: {row.why}"
    if np.isnan(row.guess):
        return "not judged: the study and the checkpoints share no measure that is defined for all, or the study has fewer than 4 cells"
    notes = []
    if np.isnan(row.train_accuracy):
        notes.append("training accuracy unknown, so it cannot be told from an untrained network")
    if differing:
        notes.append(f"another case than the study's ({', '.join(differing)})")
    if row.measures_outside:
        notes.append(f"{row.measures_outside:.0f} measures outside the calibrated range")
    if np.isnan(row.predicted_gap):
        unmoved = "without a training accuracy no labelled images can set its level" if np.isnan(row.train_accuracy) else NEEDS_LABELS
        notes.append(f"order alone, no number of points: {unmoved}" if row.rank == row.rank else f"not judged: {unmoved}")
    elif moved is not None:
        notes.append("moved together with all others by what the labelled images show")
    return "; ".join(notes)


NEEDS_LABELS = "give labelled images that were held out, as few as 50 (--labelled, labelled_path in the notebook)"
