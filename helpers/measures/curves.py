"""Response curves as rows of scores: every point is kept beside the measures that are made of it, and read back as a curve."""

from collections.abc import Mapping

import pandas as pd

from helpers.measures.registry import measure

_AT = " @ "


@measure("perturbation", 0, "Schiff et al. 2021, Algorithm 1")
def response_curve(response_curves: pd.DataFrame) -> Mapping[str, float]:
    """Accuracy on perturbed training images at every magnitude; a record for figures, with a variant per point."""
    names = response_curves["perturbation"] + _AT + response_curves["alpha"].map("{:.6f}".format)
    return dict(zip(names, response_curves["accuracy"], strict=True))


def curves_of(scores: pd.DataFrame) -> pd.DataFrame:
    """Read the response curves out of scores: model_id, perturbation, alpha in [0, 1], accuracy, score (the curve's Gi-score)."""
    points = scores[scores["measure"] == "response_curve"]
    points = points[points["variant"].str.contains(_AT, regex=False)]
    named = points["variant"].str.rsplit(_AT, n=1, expand=True).reindex(columns=[0, 1])
    columns = {"model_id": points["model_id"], "perturbation": named[0], "alpha": named[1].astype(float), "accuracy": points["value"]}
    gi = scores[scores["measure"] == "gi_score"].rename(columns={"variant": "perturbation", "value": "score"})
    return pd.DataFrame(columns).merge(gi[["model_id", "perturbation", "score"]], how="left", on=["model_id", "perturbation"])
