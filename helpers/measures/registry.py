"""The one list of measures: what each is called, where it comes from, which way it points, and what it needs."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pandas as pd

FAMILIES = (
    "localization",
    "prediction",
    "norms",
    "flatness",
    "perturbation",
    "unlabelled",
    "reliance",
)
MEASURES: dict[str, "Measure"] = {}
VALUES_VERSIONS = {
    "reliance": 2
}  # by family, else 1: raised with every change of its values, so that what was kept is computed anew
# Measures whose values lie in one file a family and model: those of the first studies,
# whose files are found by this list. Another measure has files of its own.
KEPT_TOGETHER = frozenset(
    """
    iou iou_b iou_above_shuffled energy_in_box pointing_game area_matched_iou
    pixel_average_precision whole_image_floor mask_area box_found
    box_average_precision mask_agreement images_scored images_without_overlap
    images_with_empty_map
    nuclear_norm effective_invariance output_margin training_loss training_accuracy
    prediction_entropy
    params inverse_margin l2 l2_dist log_prod_of_fro_over_margin log_prod_of_fro
    log_sum_of_fro_over_margin log_sum_of_fro fro_dist param_norm path_norm
    path_norm_over_margin log_prod_of_spec log_prod_of_spec_over_margin
    log_spec_init_main log_spec_orig_main fro_over_spec log_sum_of_spec_over_margin
    log_sum_of_spec dist_spec_init spectral_norm
    pacbayes_init pacbayes_orig pacbayes_flatness pacbayes_mag_init pacbayes_mag_orig
    pacbayes_mag_flatness sharpness_init sharpness_orig sharpness_flatness
    sharpness_mag_flatness
    response_curve gi_score pal_score pal_product pal_sum curve_mean
    accuracy_under_augmentation mixup_accuracy davies_bouldin_index dbi_times_mixup
    holdout_accuracy average_confidence difference_of_confidences
    thresholded_confidence thresholded_entropy optimal_transport matrix_norm_of_logits
    object_reliance box_only_accuracy images_without_reliance
    """.split()  # noqa: SIM905
)
Value = (
    float | Mapping[str, float | str]
)  # what a measure returns: one number, or one per variant, or why there is none


@dataclass(frozen=True)
class Measure:
    """One claim to predict the generalization gap, as a function of a network and its training images."""

    name: str  # as a column of tables
    title: str  # as a label of figures
    family: str  # one of FAMILIES
    direction: int  # +1 when a larger value promises a smaller gap, -1 when a larger one; 0 for a count that promises nothing
    source: str  # paper and equation
    variants: tuple[
        str, ...
    ]  # ways to compute it; the first is the one that is ranked, and () is one way only
    summary: str  # one line
    needs: tuple[str, ...]  # names of what the function is given, see ``evidence``
    function: Callable[..., Value]

    def column(self, variant: str = "") -> str:
        """Column of a table that holds a variant: the first has the measure's own name."""
        return (
            self.name
            if variant in ("", *self.variants[:1])
            else f"{self.name} ({variant})"
        )


@cache
def needs(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a function's arguments."""
    return tuple(inspect.signature(function).parameters)


def enter(item: Measure) -> None:
    """Add a measure to the list; one of a notebook cell replaces itself.

    Args:
        item: the measure.

    Raises:
        ValueError: if its name is taken by a measure of the workbook, or of another
            module.
    """
    present = MEASURES.get(item.name)
    if present is not None:
        module = present.function.__module__
        run_again = module == item.function.__module__
        if not (run_again and is_from_outside(present.function)):
            raise ValueError(
                f"the measure {item.name!r} is there already, from {module}; "
                "choose another name"
            )
    MEASURES[item.name] = item


def is_from_outside(function: Callable[..., Any]) -> bool:
    """Whether a function is from a notebook cell or a user's module, not of the workbook.

    Args:
        function: of a measure, or of what measures need.

    Returns:
        True where no process but this one is sure to have it.
    """
    while isinstance(function, partial):
        function = function.func
    return function.__module__.partition(".")[0] != "helpers"


def measure(
    family: str,
    direction: int,
    source: str,
    *,
    title: str = "",
    variants: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """Enter a function into the list of measures; it is then scored, tabled, drawn and ranked wherever measures are.

    Its arguments name what it needs: of ``evidence.PROVIDERS``, ``MeasureSettings`` or ``GIVEN``. It returns a ``Value``; NaN where it is
    undefined, and a ``ValueError`` says why it cannot be had. An empty title is the name in words.
    """

    def entered(function: Callable[..., Value]) -> Callable[..., Value]:
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        measures(
            family,
            direction,
            (function.__name__, title, source, summary, function),
            variants=variants,
        )
        return function

    return entered


def measures(
    family: str,
    direction: int,
    *rows: tuple[str, str, str, str, Callable[..., Value]],
    variants: tuple[str, ...] = (),
) -> None:
    """Enter measures of one row each: name, title (empty: the name in words), source, summary, and the function, see ``measure``."""
    for name, title, source, summary, function in rows:
        enter(
            Measure(
                name,
                title or name.replace("_", " "),
                family,
                direction,
                source,
                variants,
                summary,
                needs(function),
                function,
            )
        )


def of_families(families: Sequence[str]) -> list[Measure]:
    """The measures of some families, in their order."""
    return [
        item
        for family in families
        for item in MEASURES.values()
        if item.family == family
    ]


def ranked() -> dict[str, Measure]:
    """The columns that claim something, with their measure: the first variant of each that has a direction."""
    return {item.column(): item for item in MEASURES.values() if item.direction}


def columns() -> pd.DataFrame:
    """Every column that scores can have, with what is known of its measure; direction 0 is a count."""
    rows = []
    for item in MEASURES.values():
        for variant in item.variants or ("",):
            title = (
                item.title
                if variant in ("", *item.variants[:1])
                else f"{item.title}, {variant}"
            )
            row = {
                "column": item.column(variant),
                "measure": item.name,
                "variant": variant,
                "title": title,
                "family": item.family,
            }
            row |= {
                "direction": item.direction,
                "source": item.source,
                "needs": ", ".join(item.needs),
                "summary": item.summary,
            }
            rows.append(row)
    return pd.DataFrame(rows)
