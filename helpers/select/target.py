"""Accuracy on images without labels of where the networks will work, by the method that a study found best."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from helpers.scoring.targets import PLAIN_TARGET
from helpers.select import prediction
from helpers.select.calibration import Calibration, ranges
from helpers.select.moved import Moved, moved_elsewhere, moved_together, residual_spread
from helpers.select.ranking import NEEDS_LABELS
from helpers.select.scores import Met
from helpers.statistics.labelling import against_labelling

TARGET_COLUMNS = ["rank", "checkpoint", "method", "value", "predicted_accuracy", "accuracy_low", "accuracy_high", "beyond", "note"]

# What decides boxes and training images decides no logits.
_OF_TRAINING_IMAGES = ("boxes", "labels")


class TargetResult(NamedTuple):
    """What a study says of the checkpoints' accuracy on a target, and how well founded it is."""

    table: pd.DataFrame  # TARGET_COLUMNS, the highest predicted accuracy first; accuracies are fractions
    method: str  # column of the measure that the prediction rests on; "" where there is none
    measured: pd.DataFrame  # see ``calibration.ranges``, of all measures on offer
    trial: prediction.Trial  # cells left out
    transfer: prediction.Trial  # targets left out
    differing: tuple[str, ...]  # in what the case differs from the study
    moved: Moved | None  # the labelled images' predictions, moved together; None without them
    labels: pd.DataFrame  # what the method errs in the study beside what labels err, see ``labelling.against_labelling``


def predict_on_target(
    study: Calibration, met: Met, *, differing: Sequence[str] = (), unfit: Mapping[str, str] | None = None, level: float = 0.8
) -> TargetResult:
    """Accuracy on the target of every checkpoint with logits, by a line on one measure of images without labels.

    The measure goes most with the true accuracy over the study's models and targets (largest |Pearson r|), of those that all checkpoints
    have; the choice is made anew within every fold. The line is ``prediction.fit``, the interval the jackknife+ with whole cells left out,
    a cell counting once with all its models and targets: what ``prediction.intervals`` proves holds for a target that is a draw from the
    study's. A value outside all that the study's models have on its targets is beyond what the study has seen.

    Args:
        study: its models on its targets, see ``calibration.read_targets``.
        met: what the checkpoints say of the target, and of labelled images if there are any, see ``scores.scores_met``.
        differing: in what the case differs from the study, see ``calibration.differing``.
        unfit: checkpoints that are not predicted, and why, see ``ranking.RankingResult``: a wrong order of classes or a wrong normalisation
            shows in the training accuracy, and would be taken for a low accuracy of all by the labelled images.
        level: of the intervals.

    Returns:
        The predictions. Beyond the study's range, or in another case, they are an order without numbers, but where labelled images move
        them all together: the same method predicts the accuracy on these, see ``moved.moved_elsewhere``. NaN throughout where no
        measure is shared or the study has fewer than 4 cells.
    """
    unfit, models = unfit or {}, study.models
    own = met.on_target.drop(index=list(unfit), errors="ignore")
    other = tuple(name for name in differing if name not in _OF_TRAINING_IMAGES)
    columns = [name for name in study.columns if name in own and np.isfinite(own[name].astype(float)).all()] if len(own) else []
    columns = columns if models["cell"].nunique() >= prediction.FEWEST else []
    x, wrong, cells = (models[list(part)].to_numpy() if part is columns else models[part].to_numpy() for part in (columns, "gap", "cell"))
    fitted, one = prediction.fit(x, wrong, most=1), np.ones(len(models))
    method = columns[fitted.chosen[0]] if len(fitted.chosen) else ""
    measured = ranges(study, own[columns])
    table = pd.DataFrame({"checkpoint": own.index, "method": method, "value": own[method].to_numpy() if method else np.nan})
    span, moved = ["predicted_accuracy", "accuracy_low", "accuracy_high"], None
    table[["guess", *span]] = np.nan
    table["beyond"] = False
    if method:
        table["beyond"] = ~table["value"].between(models[method].min(), models[method].max())
        fresh = own[columns].to_numpy(dtype=float)
        table["guess"] = 1 - prediction.predict_gap(fitted, fresh)
        low_high = prediction.possible(prediction.intervals(x, wrong, cells, fresh, level, most=1), np.ones(len(own)))
        table[span] = np.column_stack([table["guess"].clip(0, 1), 1 - low_high[:, 1], 1 - low_high[:, 0]])
        if met.on_labelled is not None and np.isfinite(met.on_labelled.loc[own.index, method].astype(float)).all():
            there = 1 - prediction.predict_gap(fitted, met.on_labelled.loc[own.index, columns].to_numpy(dtype=float))
            moved = moved_together(there, met.right.loc[own.index].to_numpy(dtype=bool), level=level)
            table[span] = np.column_stack(moved_elsewhere(table["guess"], moved, spread=_spread(models, x, wrong), level=level))
        else:
            table.loc[table["beyond"] | bool(other), span] = np.nan
    table["rank"] = table["guess"].round(9).rank(method="min", ascending=False) if table["guess"].nunique() > 1 else np.nan
    table["note"] = [_note(row, other, moved) for row in table.itertuples()]
    bare = [{"checkpoint": name, "method": "", "beyond": False, "note": f"not predicted: {why}"} for name, why in unfit.items()]
    table = pd.concat([table, pd.DataFrame(bare)], ignore_index=True) if bare else table
    table = table.sort_values("guess", ascending=False, na_position="last", kind="stable")[TARGET_COLUMNS].reset_index(drop=True)
    tried = [prediction.coverage(x, wrong, cells, groups, one, level, most=1) for groups in (cells, models["target"].to_numpy())]
    return TargetResult(table, method, measured, *tried, other, moved, _labels(method, models, x, wrong))


def _spread(models: pd.DataFrame, x: np.ndarray, wrong: np.ndarray) -> float:
    """What moving all models of an architecture by their level on the test images leaves on the study's other targets; 0 where unknown."""
    kinds = models["architecture" if models["architecture"].nunique() > 1 else "cell"]
    residuals = prediction.left_out_predictions(x, wrong, kinds, x[:0], most=1)[0]
    plain = models["target"] == PLAIN_TARGET
    spread = residual_spread(residuals, models["architecture"], None if plain.all() else plain)
    return float(np.nan_to_num(spread))


def _labels(method: str, models: pd.DataFrame, x: np.ndarray, wrong: np.ndarray, labelled: int = 50) -> pd.DataFrame:
    """What the method errs on the study's targets, cells left out, beside what labelled images of them err."""
    if not method:
        return pd.DataFrame(columns=["method", "error", "labelled_images", "worth_more"])
    residuals = prediction.left_out_predictions(x, wrong, models["cell"], x[:0], most=1)[0]
    truth = 1 - wrong
    return against_labelling(pd.DataFrame({method: truth + residuals}), truth, labelled=labelled)


def _note(row: tuple, differing: Sequence[str], moved: Moved | None) -> str:
    if np.isnan(row.guess):
        return "not predicted: the study and the checkpoints share no measure that is defined for all, or the study has fewer than 4 cells"
    notes = [f"another case than the study's ({', '.join(differing)})"] if differing else []
    notes += [f"{row.method} of {row.value:.3g} lies beyond the study's range"] if row.beyond else []
    if np.isnan(row.predicted_accuracy):
        notes.append(f"{'order alone, no number of points' if row.rank == row.rank else 'no number'}: {NEEDS_LABELS}")
    elif moved is not None:
        notes.append("moved together with all others by what the labelled images show")
    return "; ".join(notes)
