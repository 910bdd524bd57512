"""Error and Kappa over noise, unseen classes and size (Huang, Yu and Zhang 2025): all that notebook 06 needs."""

from helpers import face

FACE = {
    "explore": ["trade_off"],
    "networks": [
        "COMPLEXITY_FAMILIES",
        "MODEL_SET",
        "as_complexity",
        "check_asked",
        "chosen_models",
        "complexities",
        "own_members",
        "published_members",
    ],
    "probe": ["class_steps"],
    "probing": [
        "at_few_levels",
        "averaged",
        "beside_table2",
        "beside_table3",
        "cells",
        "check_classes",
        "groups",
        "noise_levels",
        "of_classes",
        "probe_member",
    ],
    "report": [
        "beside_table1",
        "classes_named",
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
        "say_point",
        "say_sensitivity",
        "say_sign_errors",
        "sensitivity_curves",
        "weights_title",
    ],
    "statistics": ["marginals", "slice_sign_errors"],
    "tradeoff": ["Bounds", "fit_surface", "sensitivity", "trade_off_point"],
}
__getattr__ = face(__name__, FACE)
