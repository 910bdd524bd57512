"""Sentences and the figure on unlabelled images, from tables made by hand."""

import numpy as np
import pandas as pd
from helpers.scoring.worth import BASELINE, HOLDOUT, KNOWN, TRAINING, UNLABELLED

from helpers.report import worth


def table(**changed):
    empty = {"n": 40, "error": np.nan, "fitted_error": np.nan, "labelled_images": np.nan, "worth_more": False} | dict.fromkeys(
        ("over_training_low", "over_training_high"), np.nan
    )
    rows = [
        {"measure": "50 labelled images", "source": BASELINE, "with_error": np.nan, "over_training": np.nan, "error": 5.0},
        {"measure": KNOWN, "source": BASELINE, "with_error": 4.0, "over_training": np.nan},
        {"measure": HOLDOUT, "source": BASELINE, "with_error": 3.5, "over_training": -0.5, "error": 2.5, "labelled_images": 200.0},
        {"measure": "iou", "source": TRAINING, "with_error": 3.0, "over_training": 0.0, "fitted_error": 4.5, "labelled_images": 62.0}
        | {"worth_more": True},
        {
            "measure": "optimal_transport",
            "source": UNLABELLED,
            "with_error": 1.0,
            "over_training": 2.0,
            "error": 9.0,
            "labelled_images": 15.0,
        }
        | {"over_training_low": 1.2, "over_training_high": 2.9},
    ]
    return pd.DataFrame([empty | row | {"target": name} | changed for name in ("test images", "blur_0.7") for row in rows])


def test_the_answer_is_in_points_for_each_target():
    said = worth.say_worth(table(), {"iou": "IoU"})
    assert said.count("On ") == 2
    assert "hyperparameters and fit err by 4.0 points, with the best measure of training images (IoU) by 3.0" in said
    assert "**collecting them is worth 2.0 points** (95 % interval 1.2 to 2.9)" in said
    assert "the labelled holdout itself errs by 2.5 points, as 200 labelled images would" in said
    assert said.count("chosen as the best") == 1
    few = worth.say_worth(table(over_training_low=np.nan), {})
    assert "no interval: too few cells" in few
    nothing = worth.say_worth(table(with_error=np.nan), {})
    assert "nothing can be said" in nothing and "chosen as the best" not in nothing


def test_the_figure_has_a_panel_per_target_and_says_when_there_is_nothing():
    figure = worth.worth_figure(table(), {"iou": "IoU"})
    assert [ax.get_title() for ax in figure.axes] == ["test images", "blur_0.7"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["optimal_transport", "IoU", HOLDOUT]
    assert worth.worth_figure(table(with_error=np.nan), {}).axes[0].texts


def test_a_target_is_a_column_beside_what_is_known_of_a_model():
    models = pd.DataFrame({"model_id": ["a", "b"], "cell": "c", "train_accuracy": 1.0, "test_accuracy": [0.5, 0.7]})
    models["test_accuracy@blur_0.7"] = [0.2, 0.4]
    assert worth.target_columns(models, ["blur_0.7"]).columns[-1] == "test_accuracy@blur_0.7"


def test_what_labels_would_do_is_said_of_each_target_of_its_best_measure_by_itself():
    said = worth.say_labelling(table(), {"iou": "IoU"})
    assert said.startswith("When is a measure by itself worth more than 50 labelled images? ")
    assert said.count("1 of 2 measures; the best, IoU, errs by 4.5 points, as 62 labelled images would.") == 2
    few = table()
    few.loc[few["measure"] == "iou", "n"] = 3
    assert "0 of 1 measure; the best, optimal_transport, errs by 9.0 points, as 15 labelled images would." in worth.say_labelling(few, {})
    worst = worth.say_labelling(table(labelled_images=np.inf, worth_more=False), {})
    assert "0 of 2 measures; the best, iou, errs by 4.5 points, as no number of labelled images would." in worst
    assert worth.say_labelling(table(error=np.nan, fitted_error=np.nan), {}).count("no measure tells an accuracy") == 2
