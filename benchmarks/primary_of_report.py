"""The primary analysis of a report that is older than it, from the tables that it publishes: primary, kinds, gates, claims and the figure.

``python -m benchmarks.primary_of_report compact20 --looks 3``. Values of single images are not published, so intervals draw configurations
alone. Measures whose definition changed since (localization less the area of the box) are left out of the primary table; claims on them
are judged as they were computed.
"""

import argparse

import matplotlib.pyplot as plt
import pandas as pd

from helpers.files import PROJECT_ROOT
from helpers.parameters import read_blocks
from helpers.report import figures, notebook, style, tables
from helpers.report.findings import FIGURE
from helpers.scoring.measuring import with_measures
from helpers.statistics import claims, prediction, primary, ranking, verdicts
from helpers.statistics.correlations import design
from helpers.statistics.draws import LEVEL, Draws
from helpers.statistics.tables import varied_axes
from helpers.training.config import PAPER_AXES

MEASURES = [
    "iou",
    "pointing_game",
    "effective_invariance",
    "mixup_accuracy",
    "fro_over_spec",
    "curve_mean",
]
QUESTIONS = {
    "r_gap": "r with the gap",
    "r_gap_within_kinds": "r within kinds,\ngiven the fit",
    "saved_error_points": "points saved for\na kind left out",
}


def main() -> None:
    """Write the tables and the figure into the report."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("study")
    asked.add_argument(
        "--looks",
        type=int,
        default=1,
        help="how often the study was looked at; the level of intervals is 1 - 0.05 / looks",
    )
    given = asked.parse_args()
    folder = PROJECT_ROOT / "reports" / given.study
    catalogue = tables.read(folder, "catalogue")
    scores, listing = (
        tables.read(folder, "scores", ".parquet"),
        tables.read(folder, "measures"),
    )
    titles = dict(zip(listing["column"], listing["title"], strict=True))
    models = prediction.with_fit(
        with_measures(
            catalogue[catalogue["left_out"].isna()].reset_index(drop=True), scores
        )
    )
    every = Draws(models, draws=2000)
    rows = primary.primary_rows(models)
    answers = primary.primary_table(
        every.of(rows), MEASURES, permutations=4999, looks=given.looks
    )
    answers.insert(1, "title", answers["measure"].map(titles))
    stated = read_blocks(PROJECT_ROOT / f"params/{given.study}.yaml")["claims"]
    axes = varied_axes(models, [*PAPER_AXES, "images_per_class", "label_noise"])
    field, _ = ranking.ranking_table(
        every, sorted({claim["measure"] for claim in stated}), axes, permutations=4999
    )
    field = field.merge(
        _saved(every, stated, axes, 1 - (1 - LEVEL) / given.looks),
        on="measure",
        how="left",
        suffixes=("_of_one_look", ""),
    )
    mask = dict.fromkeys(("iou", "iou_b"), models.loc[rows, "mask_area"])
    gates = verdicts.gate_table(
        models[rows],
        classes=20,
        floor=float(models["whole_image_floor"].mean()),
        mask_areas=mask,
    )
    written = {
        "primary": answers,
        "kinds": primary.kinds_table(models[rows]),
        "gates": gates,
    }
    written["claims"] = verdicts.judged(
        claims.check_claims(stated), answers, field, gates
    )
    for name, table in written.items():
        table.to_csv(folder / f"tables/{name}.csv", index=False, float_format="%.8g")
    style.use()
    figure, panels = plt.subplots(
        1, 3, figsize=(11, 1.6 + 0.42 * len(answers)), sharey=True
    )
    for ax, (question, title) in zip(panels, QUESTIONS.items(), strict=True):
        figures.forest(ax, answers, question, answers["title"])
        ax.set_title(title, fontsize="medium")
    (folder / FIGURE).write_bytes(notebook._drawn(figure, dpi=90))
    print(
        answers.T.to_string(),
        written["claims"][
            ["claim", "ours", "low", "high", "level", "verdict"]
        ].to_string(),
        sep="\n\n",
    )


def _saved(
    every: Draws, stated: list[dict], axes: list[str], level: float
) -> pd.DataFrame:
    """Points that measures save beside hyperparameters and fit, with intervals of the level that the looks leave."""
    names = sorted(
        {claim["measure"] for claim in stated if claim["question"] == claims.ADDED}
    )
    saved = prediction.saved_errors(
        every, names, design(every.models, axes, prediction.FIT), "cell", level
    )
    columns = {
        name: name.replace("saved_error_points", claims.ADDED)
        for name in saved.columns
        if name.startswith("saved_error_points")
    }
    return saved[["measure", *columns]].rename(columns=columns).assign(level=level)


if __name__ == "__main__":
    main()
