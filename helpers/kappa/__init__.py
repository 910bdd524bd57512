"""Error and Kappa over noise, unseen classes and size (Huang, Yu and Zhang 2025): all that notebook 06 needs."""

from helpers import face

FACE = {
    "explore": ["trade_off"],
    "intervals": ["drawn_grid", "drawn_statistics", "drawn_units", "spread"],
    "making": ["made_names", "make_missing"],
    "networks": [
        "COMPLEXITY_FAMILIES",
        "MODEL_SET",
        "as_complexity",
        "check_asked",
        "chosen_models",
        "complexities",
        "made_members",
        "own_members",
        "published_members",
    ],
    "probe": ["class_steps"],
    "probing": ["at_few_levels", "averaged", "by_family", "cells", "check_classes", "noise_levels", "of_classes", "probe_member"],
    "report": [
        "classes_named",
        "family_named",
        "heading",
        "heat_maps",
        "kappa_answer",
        "kappa_error_diagram",
        "marginal_curves",
        "points_beside_published",
        "say_cells",
        "say_diagram",
        "say_divergence",
        "say_heat",
        "say_made",
        "say_point",
        "say_sensitivity",
        "say_sign_errors",
        "sensitivity_curves",
        "sign_error_figure",
        "weights_title",
    ],
    "statistics": ["marginals", "slice_sign_errors"],
    "tables": ["beside_table1", "beside_table2", "beside_table3"],
    "tradeoff": ["Bounds", "fit_surface", "sensitivity", "trade_off_point"],
}
__getattr__ = face(__name__, FACE)
