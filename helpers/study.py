"""A study as an object: its networks, images and scores, from work or from records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helpers.data.images import StudyData, images_of_study, manifest_of
from helpers.files import RECORDS
from helpers.measures.evidence import MeasureSettings
from helpers.parameters import near_names
from helpers.report.notebook import Report, places, point_to_records, select_shard
from helpers.scores.classification import correct, test_logits
from helpers.scores.measuring import (
    IMAGE_VALUES,
    NO_INTERVAL,
    OF_UNEQUAL_IMAGES,
    score,
    with_measures,
)
from helpers.scores.models import Model, models_of
from helpers.scores.scoring_set import ScoringSet, scoring_set
from helpers.scores.store import Records, Store
from helpers.statistics.correlate import Bootstrap, with_log_train_loss
from helpers.studies import StudyFile, path_of
from helpers.training.catalogue import models_of_study
from helpers.training.pool import choose_device

SCORED_IMAGES = 1000
_OPTIONS = ("minimum_train_accuracy", "device", "jobs")
NO_TEST_IMAGES = (
    "Which test images each network gets right is not recorded: intervals do not "
    "resample test images."
)


@dataclass(frozen=True)
class Measured:
    """Values of the measures of one or more families, for each network."""

    models: pd.DataFrame  # rows of the catalogue with a column per measure
    table: pd.DataFrame  # model_id, family, measure, variant, value, reason
    records: Records  # stored values of each network, by family

    @cached_property
    def image_values(self) -> dict[str, NDArray[np.float32]]:
        """Values of single images by column, (models, images), NaN where undefined."""
        rows = pd.Index(self.records.model_ids).get_indexer(self.models["model_id"])
        is_here = rows[:, None] >= 0  # False for networks of another shard
        return {
            name: np.where(is_here, values[rows], np.float32(np.nan))
            for family in IMAGE_VALUES.keys() & self.records.keys
            for name, values in self.records.of_images(family).items()
            if name in self.models
        }

    def undefined(self) -> pd.DataFrame:
        """The number of networks in which a measure is undefined, by reason."""
        without_value = self.table[self.table["reason"] != ""]
        by_reason = without_value.groupby(["measure", "variant", "reason"]).size()
        return by_reason.rename("models").reset_index()


@dataclass(eq=False)
class Study:
    """Networks, images and scores of one study.

    What lies in ``work/<study>`` is read there, else in ``reports/<study>/records``;
    what is missing is computed where weights and images are.

    Example:
        >>> study = Study.open("kinds20")  # doctest: +SKIP
        >>> study.scores(["localization"], cam_threshold=0.2)["iou"]  # doctest: +SKIP
    """

    work: Path  # its own folder, or that of the study that it extends
    reports: Path  # its own folder
    minimum_train_accuracy: float = 0.8
    device: str = "auto"  # that values are computed on; "cpu" or "cuda" once chosen
    jobs: int = 0

    def __post_init__(self) -> None:
        """Choose the device."""
        self.device = choose_device(self.device)

    @classmethod
    def open(
        cls,
        name: str,
        *,
        work_dir: str = "work",
        reports_dir: str = "reports",
        **options: Any,
    ) -> "Study":
        """Open a study by its name.

        Worker processes know the folder of work alone. If the records are not in their
        default place, see ``files.records_of``, a file there notes where they are.

        Args:
            name: of its folder in ``work_dir`` and ``reports_dir``.
            work_dir: where runs, scores and images are, from the project's root.
            reports_dir: where reports and records are.
            options: ``minimum_train_accuracy`` (a network at or below it is not
                analysed; by default that of the study's file), ``device`` ("cpu",
                "cuda" or "auto") and ``jobs`` (networks that are scored side by side,
                see ``pool.jobs_on``).

        Raises:
            FileNotFoundError: if neither folder has the study.
            ValueError: if the name would leave the folders.
        """
        work, reports = places(name, work_dir, reports_dir)
        if not (work.is_dir() or (reports.with_name(work.name) / RECORDS).is_dir()):
            paths = reports.parent.glob(f"*/{RECORDS}")
            studies = sorted(path.parent.name for path in paths)
            raise FileNotFoundError(
                f"no study {name!r} is in {work.parent} or has records in "
                f"{reports.parent}{near_names(name, studies)}; run `make "
                f"sweep STUDY={name}`, or open one of {', '.join(studies)}"
            )
        point_to_records(work, reports)
        if path_of(name).is_file():
            values = StudyFile.read(name).of_all_notebooks
            accuracy = values.get("minimum_train_accuracy", cls.minimum_train_accuracy)
            options = {"minimum_train_accuracy": accuracy} | options
        return cls(work, reports, **options)

    @classmethod
    def of(cls, report: Report) -> "Study":
        """The study that a notebook's parameters name."""
        values = vars(report.parameters)
        options = {name: values[name] for name in _OPTIONS if name in values}
        return cls(report.work, report.reports, **options)

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.reports.name

    @cached_property
    def images(self) -> StudyData:
        """Images of both splits with labels and boxes.

        They have pixels where the images are here, see ``ImageSet.has_pixels``.
        """
        return images_of_study(self.work)

    @cached_property
    def models(self) -> pd.DataFrame:
        """A row per network: hyperparameters, accuracies, gap and kind of training.

        ``left_out`` is "" for a network that is analysed, else why it is not.
        """
        fingerprint = manifest_of(self.work)["fingerprint"]
        return models_of_study(self.work, fingerprint, self.minimum_train_accuracy)

    @cached_property
    def analysed(self) -> pd.DataFrame:
        """The rows of ``models`` that are analysed."""
        return self.models[self.models["left_out"] == ""].reset_index(drop=True)

    @cached_property
    def store(self) -> Store:
        """Cache of the values computed from the study's networks."""
        # Not ``self.images``: each worker process loads the images itself, and only if
        # values are missing.
        images = partial(images_of_study, self.work)
        return Store(self.work, images, device=self.device, jobs=self.jobs)

    def networks(self, models: pd.DataFrame | None = None) -> list[Model]:
        """Loadable networks of rows of ``models``, by default of the analysed ones."""
        rows = self.analysed if models is None else models
        return models_of(self.work, rows, self.images)

    def scoring_set(self, count: int = SCORED_IMAGES) -> ScoringSet:
        """The training images that every network is scored on.

        Args:
            count: number of the images that all runs were fitted to; 0 takes all.
        """
        return scoring_set(self.models, self.images, count)

    def measure(
        self,
        families: Sequence[str],
        settings: MeasureSettings,
        scored_on: ScoringSet,
        *,
        models: pd.DataFrame | None = None,
        shard: str = "",
    ) -> Measured:
        """Measures of networks; values that are not stored are computed.

        Args:
            families: of ``measures.registry.FAMILIES``.
            settings: of the measures.
            scored_on: training images, see ``scoring_set``.
            models: rows of ``models``; those that are analysed by default.
            shard: share of the networks to score, such as "2/4"; "" scores all.

        Raises:
            NotInRecords: if values are neither stored nor computable here.
        """
        rows = self.analysed if models is None else models
        networks = select_shard(self.networks(rows), shard)
        records = score(self.store, networks, families, settings, scored_on)
        table = records.scores().rename(columns={"part": "family"})
        table = table[["model_id", "family", "measure", "variant", "value", "reason"]]
        return Measured(with_measures(rows, table), table, records)

    def scores(
        self,
        families: Sequence[str],
        *,
        scored_images: int = SCORED_IMAGES,
        **settings: Any,
    ) -> pd.DataFrame:
        """The analysed networks with a column per measure.

        Args:
            families: such as ``["localization", "norms"]``.
            scored_images: training images that every network is scored on.
            settings: of ``MeasureSettings``, such as ``cam_threshold=0.2``.

        Raises:
            NotInRecords: see ``measure``.
            ValueError: for a family or a setting that does not exist.
        """
        chosen = MeasureSettings.of(settings)
        return self.measure(families, chosen, self.scoring_set(scored_images)).models

    def bootstrap(
        self,
        measured: Measured,
        *,
        draws: int,
        seed: int,
        warn: Callable[[str], None] = print,
    ) -> Bootstrap:
        """Bootstrap of configurations, and of scored images and test images.

        Args:
            measured: values of the networks that are drawn.
            draws: number of draws.
            seed: of the draws.
            warn: called with each warning that unrecorded values affect intervals.
        """
        models, of_images = measured.models, measured.image_values
        logits = test_logits(self.store, self.networks(models), self.images)
        right = correct(logits, self.images.test.labels)  # (models, test images)
        if np.isfinite(right).all():
            of_images = of_images | {"test_accuracy": right}
        else:
            warn(NO_TEST_IMAGES)
        no_interval = [
            name
            for name in OF_UNEQUAL_IMAGES
            if name in models and name not in of_images
        ]
        if no_interval:
            warn(NO_INTERVAL)
        # Correlations may be adjusted for training accuracy and log loss.
        models = with_log_train_loss(models)
        options = {"draws": draws, "seed": seed, "no_interval": no_interval}
        return Bootstrap(models, of_images, **options)
