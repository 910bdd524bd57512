"""Does the overlap score survive other choices: all that notebook 05 needs."""

from helpers import face

FACE = {
    "attributions": ["attributions_compared", "say_attributions"],
    "compute": ["AblationSettings"],
    "report": [
        "correlations_figure",
        "distinct",
        "lowest_pooled",
        "masks",
        "pictured",
        "pooled_against_within",
        "right_and_wrong",
        "say_annotations",
        "say_cam_methods",
        "say_choices",
        "say_examples",
        "say_machine_masks",
        "say_map_thresholds",
        "say_random",
        "say_repeats",
        "survival",
        "threshold_figure",
        "ways",
    ],
    "store": [
        "UNTRAINED_COLUMNS",
        "load_ablations",
        "random_network_scores",
        "score_missing_ablations",
        "single_images",
        "with_other_measures",
    ],
    "tables": [
        "annotations",
        "by_class",
        "by_image_size",
        "by_layer",
        "by_threshold",
        "cam_methods",
        "paper_scores",
        "published_pooled",
        "validity",
    ],
    "wrong_labels": [
        "say_label_noise",
        "say_pairs",
        "say_promises",
        "say_without",
        "shifts_figure",
        "with_promises",
        "without_wrong_labels",
    ],
}
__getattr__ = face(__name__, FACE)
