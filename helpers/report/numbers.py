"""Numbers of a study by name, for the template of its findings."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from helpers.report.markup import inert
from helpers.report.studies import primary_networks
from helpers.report.style import Tables, percent, short_name
from helpers.report.sweeps import results_of
from helpers.report.tables import read
from helpers.statistics.correlate import LEVEL, Array, Bootstrap, correlate, design
from helpers.statistics.published import published_table
from helpers.statistics.verdicts import word

ABOVE_CHANCE = ", above chance"
# Steps of ``Numbers.held_fixed``: each holds these hyperparameters fixed, and those of
# the steps before. They are what a network learns from.
_STEPS = {
    "start": ("pretrained",),
    "images": ("images_per_class",),
    "architecture": ("architecture",),
    "augmentation": ("augmentation", "strong_augmentation"),
}


class StaleSentence(ValueError):
    """A hand-written sentence that its tables no longer support."""


class Numbers:
    """Numbers of one report; texts are formatted for readers.

    A predictor is a measure or a baseline of the primary analysis. A question is one of
    its correlations, by the name of the column: "r_gap", "r_gap_given_start" or
    "r_test_accuracy", among others. A name that a table lacks raises ``KeyError``.
    """

    def __init__(self, tables: Tables, report: Path) -> None:
        """Take the tables of the report by name, and its folder."""
        self.tables = tables
        self.report = report

    @cached_property
    def primary(self) -> pd.DataFrame:
        """The primary analysis by predictor."""
        return self.tables["primary"].set_index("measure", drop=False)

    @cached_property
    def measures(self) -> pd.DataFrame:
        """The rows of ``primary`` that are not baselines."""
        return self.primary[~self.primary["baseline"].astype(bool)]

    @property
    def has_intervals(self) -> bool:
        """Whether there are enough configurations for intervals."""
        return bool(np.isfinite(self.measures["r_gap_low"]).any())

    @property
    def networks(self) -> int:
        """The number of networks of the primary analysis."""
        return int(self.measures["n"].max())

    @property
    def kinds(self) -> int:
        """The number of their kinds of training."""
        return int(self.measures["kinds"].max())

    def title(self, predictor: str) -> str:
        """A predictor in words, without HTML and links that its name may hold."""
        return inert(self.primary.loc[predictor, "title"]).removesuffix(ABOVE_CHANCE)

    def titles(self, gap: str, question: str = "r_gap") -> str:
        """Titles of the measures with a verdict, joined by commas.

        Args:
            gap: the verdict, see ``verdict``.
            question: a correlation of the primary analysis.
        """
        names = [
            name for name in self.measures.index if self.verdict(name, question) == gap
        ]
        return ", ".join(map(self.title, names))

    def r(self, predictor: str, question: str = "r_gap") -> str:
        """A correlation of the primary analysis."""
        return f"{self.primary.loc[predictor, question]:.2f}"

    def verdict(self, measure: str, question: str = "r_gap") -> str:
        """The gap of networks with larger values: smaller, larger, or cannot tell."""
        row = self.primary.loc[measure]
        return word(row, question, self.tables.get("claims"))

    def error(self, predictor: str) -> str:
        """Mean error for kinds of training held out in every architecture, points."""
        return f"{self.primary.loc[predictor, 'error_with_twins']:.1f}"

    @cached_property
    def best(self) -> str:
        """The measure with the least error on held-out kinds; "" without one."""
        complete = self.measures[self.measures["n"] == self.networks]
        errors = complete["error_with_twins"].dropna()
        return str(errors.idxmin()) if len(errors) else ""

    @property
    def rival(self) -> str:
        """The baseline that measures are compared with; "" where none has an error."""
        names = self.measures["best_baseline"].dropna()
        return str(names.iloc[0]) if len(names) else ""

    def improves(self, measure: str) -> bool:
        """Whether a measure clearly predicts held-out kinds better than the rival."""
        row = self.primary.loc[measure]
        p = row["saved_from_best_points_p_adjusted"]
        return bool(p < 1 - row["level"] and row["saved_from_best_points_low"] > 0)

    def across_error(self, predictor: str, trained_on: str = "") -> str:
        """Mean error on this study from the networks of another one, points.

        Args:
            predictor: a measure or a baseline of the primary analysis.
            trained_on: the other study; "" where there is only one.

        Raises:
            KeyError: if not exactly one row of the table "across" has both.
        """
        table = self.tables["across"]
        rows = table[table["measure"].eq(predictor)]
        if trained_on:
            rows = rows[rows["trained_on"].eq(trained_on)]
        if len(rows) != 1:
            studies = ", ".join(sorted(set(table["trained_on"])))
            raise KeyError(
                f"the table across has {len(rows)} errors of {predictor!r} trained on "
                f"{trained_on or 'any study'!r}; its studies are {studies}"
            )
        return f"{rows['error_points'].iloc[0]:.1f}"

    def published_r(self, architecture: str = "resnet18") -> str:
        """The paper's r of IoU and gap above 80 % training accuracy.

        Args:
            architecture: of Table 3 of Du et al. 2024, or "Total".
        """
        table = published_table("du2024_table3").set_index(
            ["method", "architecture", "threshold"]
        )
        return f"{table.loc[('iou', architecture, 0.8), 'pearson_r']:.2f}"

    def condition(self, gate: str, measure: str) -> float:
        """The value of a condition that a study must meet for a verdict to count.

        Args:
            gate: the condition, as the table "gates" names it.
            measure: the measure that it concerns, as that table names it.
        """
        gates = self.tables["gates"]
        rows = gates[gates["gate"].eq(gate) & gates["concerns"].eq(measure)]
        if not len(rows):
            raise KeyError(f"the table gates has no {gate!r} of {measure!r}")
        return float(rows["value"].iloc[0])

    def swept(self, notebook: str, result: str) -> pd.Series:
        """A result of a notebook by the values of the parameters that were swept."""
        frame = results_of(self.report / "sweeps" / notebook)
        return frame.set_index(frame.attrs["parameters"])[result]

    def difference(self, arm: str, control: str, outcome: str) -> pd.Series:
        """An outcome of an arm minus that of its control, over all pairs.

        Args:
            arm: of the experiment of notebook 09, as "map_in_box 1".
            control: the arm that it is compared with.
            outcome: "gap" and others in points, overlaps in fractions.

        Returns:
            Of the table looking_differences: pairs, difference, low, high, p.
        """
        return self._differences.loc[(arm, control, outcome)]

    def claim_of_arms(self, arm: str, control: str, outcome: str) -> pd.Series:
        """The claim that a study made on such a difference, as notebook 09 judged it.

        Args:
            arm: of the experiment of notebook 09, as "map_in_box 1".
            control: the arm that it is compared with.
            outcome: "gap" and others.

        Returns:
            Of the table looking_claims: claim, p_adjusted, verdict and others.
        """
        of_arms = self.table("looking_claims").set_index(["arm", "control", "measure"])
        return of_arms.loc[(arm, control, outcome)]

    def error_along(self, axis: str) -> pd.Series:
        """Mean error rate of notebook 06 at each level of an axis, in percent.

        Args:
            axis: "ssim", "unseen_fraction" or "weights", of one family of networks.
        """
        of_axis = self.table("marginals").query("axis == @axis")
        return 100 * of_axis.set_index("level")["error_mean"]

    @cached_property
    def trade_off(self) -> pd.DataFrame:
        """The trade-off point of notebook 06: value, low and high by quantity."""
        return self.table("table2_tradeoff").set_index("quantity")

    def table(self, name: str) -> pd.DataFrame:
        """A table of the report, read from its file: ``tables`` holds only some."""
        table = read(self.report, name)
        if table is None:
            raise KeyError(f"{self.report} has no table {name}")
        return table

    @cached_property
    def _differences(self) -> pd.DataFrame:
        """Differences over the pairs of all starts by arm, control and outcome."""
        table = self.table("looking_differences")
        table = table[table["start"] == "all"]
        return table.set_index(["arm", "control", "outcome"])

    @cached_property
    def models(self) -> pd.DataFrame | None:
        """The networks of the primary analysis with their measures, if published."""
        catalogue = self.tables.get("catalogue", ())
        scores = self.tables.get("scores", ())
        if not len(catalogue) or not len(scores):
            return None
        return primary_networks(catalogue, scores)

    @cached_property
    def by_start(self) -> pd.DataFrame:
        """r with the gap among networks of one start alone.

        Returns:
            A row per measure of the primary analysis: measure, title, and for each
            start, ``pretrained`` and ``scratch``, r with ``_low``, ``_high`` and the
            number ``_n``; no rows where all networks have the same start.
        """
        table = self._measures_of_models()
        if table.empty or self.models["pretrained"].nunique() < 2:
            return pd.DataFrame()
        for start, name in ((True, "pretrained"), (False, "scratch")):
            rows = self.models[self.models["pretrained"].astype(bool) == start]
            r = self._add_r(table, name, self._bootstrap(rows))
            table[f"{name}_n"] = r["n"]
        return table

    @cached_property
    def held_fixed(self) -> pd.DataFrame:
        """r with the gap, with more of what networks learn from held fixed a step.

        What explains both a measure and the gap makes them correlate. If r vanishes
        once it is held fixed, the measure tells nothing beyond it.

        Returns:
            A row per measure of the primary analysis: measure, title, and r with
            ``_low`` and ``_high`` in a column for each step: ``start`` (whether
            pretrained), ``images`` (also the number of images of a class),
            ``architecture`` and ``augmentation``. A step in which no networks differ
            has no column; no rows where none has one.
        """
        table = self._measures_of_models()
        if table.empty:
            return pd.DataFrame()
        models = self.models
        bootstrap = self._bootstrap(models)
        fixed: list[str] = []
        for step, hyperparameters in _STEPS.items():
            varied = [
                name
                for name in hyperparameters
                if name in models and models[name].nunique() > 1
            ]
            if varied:
                fixed += varied
                self._add_r(table, step, bootstrap, design(models, fixed))
        return table if fixed else pd.DataFrame()

    def _measures_of_models(self) -> pd.DataFrame:
        """Measure and title of the primary measures that ``models`` has."""
        columns = ["measure", "title"]
        if self.models is None:
            return pd.DataFrame(columns=columns)
        names = [name for name in self.measures.index if name in self.models]
        return self.measures.loc[names, columns].reset_index(drop=True)

    def _bootstrap(self, models: pd.DataFrame) -> Bootstrap:
        """Draws of networks, without intervals for measures that have none in 04.

        Notebook 04 gives no interval to a measure whose values of single images are not
        recorded.
        """
        r_low = self.measures["r_gap_low"]
        level = self.measures["level"].min()
        no_interval = r_low.index[r_low.isna()]
        return Bootstrap(models, level=level, no_interval=no_interval)

    def _add_r(
        self,
        table: pd.DataFrame,
        column: str,
        bootstrap: Bootstrap,
        given: Array | None = None,
    ) -> pd.DataFrame:
        """Add r of a table's measures with the gap, and its ends, to the table.

        Args:
            table: with a column measure; gets ``column``, ``_low`` and ``_high``.
            column: name of the new column.
            bootstrap: of the networks.
            given: (n, k) columns to hold fixed.
        """
        r = correlate(bootstrap, table["measure"], given=given)
        table[[column, f"{column}_low", f"{column}_high"]] = r[["r", "low", "high"]]
        return r

    @cached_property
    def attributions(self) -> pd.DataFrame:
        """Rows of attributions other than class activation maps."""
        table = self.table("attributions")
        return table[~table["method"].str.contains("CAM")]

    def of_start(
        self, table: str, column: str, pretrained: bool, statistic: str
    ) -> float:
        """A statistic over the networks of one start.

        Args:
            table: with a row per network, by its ``model_id``.
            column: of that table.
            pretrained: the start.
            statistic: a name that pandas knows, such as "median".
        """
        rows = self.table(table)
        catalogue = self.tables["catalogue"].set_index("model_id")
        starts = rows["model_id"].map(catalogue["pretrained"]).astype(bool)
        return float(rows.loc[starts == pretrained, column].agg(statistic))

    @cached_property
    def winner(self) -> dict[str, Any]:
        """The network with the highest test accuracy.

        Returns:
            ``name``, ``accuracy`` and its 95 % binomial ``low`` and ``high`` (Wilson)
            in percent, ``gap`` in points, ``alike`` (the number of others whose
            interval overlaps), ``others``, ``images`` (that it was tested on), and
            ``chance`` (points by which its maps have their maximum in the box more
            often than chance; NaN without boxes); empty where no network has a test
            accuracy.
        """
        catalogue = self.tables.get("catalogue")
        images = self.tables.get("images")
        if catalogue is None or images is None or not len(images):
            return {}
        # Not the snapshot that a run takes before it stops.
        rows = catalogue[catalogue["snapshot"].ne("first")]
        rows = rows.dropna(subset=["test_accuracy"]).reset_index(drop=True)
        if not len(rows):
            return {}
        trials = int(images["test_images"].iloc[0])  # the table has one row
        ends = [
            binomtest(round(accuracy * trials), trials).proportion_ci(LEVEL, "wilson")
            for accuracy in rows["test_accuracy"]
        ]
        place = int(rows["test_accuracy"].idxmax())
        best = rows.iloc[place]
        return {
            "name": inert(short_name(best)),
            "accuracy": percent(best["test_accuracy"]),
            "low": percent(ends[place].low),
            "high": percent(ends[place].high),
            "gap": f"{100 * best['gap']:.1f}",
            "others": len(rows) - 1,
            "alike": sum(end.high >= ends[place].low for end in ends) - 1,
            "images": trials,
            "chance": self._pointing(best["model_id"]),
        }

    def _pointing(self, model_id: str) -> float:
        if self.models is None or "pointing_game" not in self.models:
            return np.nan
        values = self.models.set_index("model_id")["pointing_game"]
        return float(100 * values.get(model_id, np.nan))


def holding(study: str) -> Callable[..., str]:
    """Function for verdicts in templates, which fails if tables no longer support one.

    Args:
        study: named by the error.

    Returns:
        A function of a condition and of the sentence (Jinja's ``caller``). It returns
        the sentence, or raises ``StaleSentence`` if the condition is not met.
    """

    def holds(condition: bool, caller: Callable[[], str]) -> str:
        sentence = " ".join(caller().split())
        if not condition:
            raise StaleSentence(
                f"params/{study}.md.j2: the tables of reports/{study} no longer "
                "support this sentence; rewrite it, and the condition above it: "
                f"{sentence}"
            )
        return f"{sentence}\n"  # Jinja removes the line break of the template

    return holds
