"""The primary analysis of a published report, computed anew from its tables.

``python -m benchmarks.primary_of_report kinds20 filled20`` writes the tables primary,
across, pairs and claims of each, and the primary figure. Values of single images are not published with every
report, so intervals of r that are not in its table yet draw configurations alone; those
that are there are left as notebook 04 computed them, with images drawn too.
"""

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from helpers.files import PROJECT_ROOT, complete_or_absent
from helpers.parameters import read_blocks
from helpers.report import figures, notebook, studies, style, tables
from helpers.report.findings import FIGURE
from helpers.statistics import baselines, claims, prediction, primary, verdicts
from helpers.statistics.draws import Draws

OF_IMAGES = ("_low", "_high", "_smallest")  # what drawing images changes
VECTOR = {"format": "svg", "dpi": 90}
PANELS = {
    "r_gap": "r with the gap",
    "r_gap_given_start": "r with the start\nheld fixed",
    "error_with": "error of a kind\nheld out (points)",
}
CORRELATIONS = ("r_gap", "r_gap_within_kinds")  # published with images drawn


def main() -> None:
    """Write the tables into the reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="+")
    for study in parser.parse_args().studies:
        for name, table in recomputed(study, PROJECT_ROOT / "reports").items():
            path = PROJECT_ROOT / "reports" / study / f"tables/{name}.csv"
            with complete_or_absent(path) as temporary:
                table.to_csv(temporary, index=False, float_format="%.8g")
            print(f"wrote {path.relative_to(PROJECT_ROOT)}: {len(table)} rows")
            if name == "primary":
                draw(table, PROJECT_ROOT / "reports" / study / FIGURE)


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw the primary figure as notebook 04 does, as PNG and SVG."""
    style.use()
    height = 1.4 + 0.36 * len(table)
    figure, panels = plt.subplots(1, 3, figsize=(9, height), sharey=True)
    for ax, (question, title) in zip(panels, PANELS.items(), strict=True):
        figures.forest(ax, table, question, table["title"])
        ax.set_title(title, fontsize="small")
        if question.startswith("r_"):
            ax.set_xlim(-1.05, 1.05)
            ax.set_xticks([-1, 0, 1])
    for place, look in ((path, {"dpi": 90}), (path.with_suffix(".svg"), VECTOR)):
        with complete_or_absent(place) as temporary:
            temporary.write_bytes(notebook._drawn(figure, **look))


def recomputed(study: str, reports: Path) -> dict[str, pd.DataFrame]:
    """The tables primary, across, pairs and claims of a report, by today's rules."""
    folder = reports / study
    models = prediction.with_fit(studies.published_models(reports, study))
    published = tables.read(folder, "primary")
    is_measure = ~published.get("baseline", pd.Series(False, published.index))
    published = published[is_measure.astype(bool)].set_index("measure")
    titles = published["title"].to_dict()
    options = read_blocks(PROJECT_ROOT / f"params/{study}.yaml")
    options = options["notebooks"]["04_baselines"]
    table = primary.primary_table(
        Draws(models, draws=2000),
        list(titles),
        permutations=4999,
        looks=options.get("looks", 1),
    )
    table.insert(1, "title", table["measure"].map(titles | baselines.TITLES))
    _keep_intervals(table, published)
    alike = ["learning_rate", "weight_decay", "batch_size"]
    outcomes = ["gap", "test_accuracy", *titles]
    pairs = baselines.matched_pairs(
        models, "optimizer", ("sgd", "adam"), alike, outcomes
    )
    others = options.get("other_studies", [])
    stated = read_blocks(PROJECT_ROOT / f"params/{study}.yaml")["claims"]
    judged = verdicts.judged(
        claims.check_claims(stated), table, table, tables.read(folder, "gates")
    )
    first = tables.read(folder, "claims").columns
    return {
        "primary": table,
        "across": studies.across(models, study, others, reports, titles),
        "pairs": pairs,
        "claims": judged[[*first]],
    }


def _keep_intervals(table: pd.DataFrame, published: pd.DataFrame) -> None:
    """Put published intervals of r, for which images were drawn, into a new table."""
    rows = table["measure"].isin(published.index)
    for question in CORRELATIONS:
        for end in OF_IMAGES:
            name = f"{question}{end}"
            values = table.loc[rows, "measure"].map(published[name])
            table.loc[rows, name] = values.astype(float)
        before = table.loc[rows, "measure"].map(published[question]).astype(float)
        if not np.allclose(before, table.loc[rows, question], atol=1e-6):
            raise ValueError(f"{question} is not what the published scores give")


if __name__ == "__main__":
    sys.exit(main())
