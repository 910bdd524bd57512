"""The configuration of a training run, its name, and the runs of a study."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.files import json_digest
from helpers.parameters import AXIS_PARAMETERS

NONE = "none"  # the level of ``strong_augmentation`` of the paper's training
PLAIN = "plain"  # the level of ``looking`` of training as usual
PRECISIONS = ("float32", "bfloat16")

AXES = tuple(AXIS_PARAMETERS)


@dataclass(frozen=True)
class RunConfig:
    """All that determines the outcome of a training run, on any machine."""

    architecture: str
    batch_size: int
    learning_rate: float
    optimizer: str
    weight_decay: float
    augmentation: bool
    pretrained: bool
    data: str  # fingerprint of the images, labels and boxes, wherever they lie
    weights: str = ""  # identity of the pretrained weights; "" for a run from scratch
    repeat: int = 0  # number of the run among those that differ in random numbers only
    images_per_class: int = 0  # for training; 0 takes all
    label_noise: float = 0.0  # fraction of training labels replaced by another class
    stem: str = "imagenet"
    width: float = 1.0
    last_stride: int = 2  # of the last stage; 1 doubles the side of its map
    precision: str = "float32"  # of products in a training step; all else is float32
    momentum: float = 0.9  # of SGD; the paper does not state one
    max_epochs: int = 150  # rule 4: the largest number of epochs
    loss_threshold: float = 0.1  # rule 1: a smaller training loss
    accuracy_threshold: float = 0.95  # rule 2: a greater training accuracy
    # Rule 3: a rising error, on the images "holdout", or on "test" as in the paper,
    # which lets the test images decide when the run stops.
    rule3_split: str = "holdout"
    holdout_fraction: float = 0.1  # of the training images; only for "holdout"
    seed: int = 0
    # Where training makes the network look, and how strongly, such as "map_in_box 0.3";
    # see ``training.looking``.
    looking: str = PLAIN
    # A snapshot is taken at the first epoch above this training accuracy; 0: none.
    matched_accuracy: float = 0.0
    label_smoothing: float = 0.0  # share of the target that is spread over all classes
    frozen_stages: int = 0  # first stages, with the stem, that keep pretrained weights
    strong_augmentation: str = NONE  # "crops", "erasing" and "mixup", joined by "+"

    def __post_init__(self) -> None:
        """Refuse values that contradict each other: ValueError."""
        if self.frozen_stages and not self.pretrained:
            raise ValueError(
                f"frozen_stages is {self.frozen_stages} in a run from scratch, which "
                "would keep random weights; give it to pretrained runs alone, by blocks"
            )
        if self.looking != PLAIN and self.strong_augmentation != NONE:
            raise ValueError(
                f"looking {self.looking!r} needs boxes that strong_augmentation "
                f"{self.strong_augmentation!r} would move; take none with it, by blocks"
            )

    def __str__(self) -> str:
        """Id of the run: its configuration, its repeat, and a digest of all values."""
        values = {name: getattr(self, name) for name in _EARLIER}
        digest = json_digest(values | _changed(self))
        return f"{configuration_name(self)}-r{self.repeat}-{digest}"


HYPERPARAMETERS = [field.name for field in fields(RunConfig)]
# Hyperparameters of the first version. Those that came later are left out of a
# run's digest at their defaults, so that its id stays.
_EARLIER = HYPERPARAMETERS[: HYPERPARAMETERS.index("looking")]
# Words of hyperparameters beyond the paper's, in the id of a run and in its kind.
_WORDS = {
    "images_per_class": ("n{0}", "{0} a class"),
    "label_noise": ("noise{0:g}", "{1:g}% wrong labels"),
    "looking": ("{0}", "{0}"),
    "strong_augmentation": ("{0}", "{0}"),
    "label_smoothing": ("smooth{0:g}", "labels smoothed by {0:g}"),
    "frozen_stages": ("frozen{0}", "stem and {0} stages frozen"),
}


def configuration_name(config: RunConfig) -> str:
    """Name a configuration of hyperparameters: a run without its repeat.

    The bootstrap resamples configurations, with all their runs. The name holds every
    axis that a study may have, except ``repeat``; other fields are the same in all runs
    of a study, or follow from the axes.

    Args:
        config: any of its runs.
    """
    words = [
        config.architecture,
        f"b{config.batch_size}",
        f"lr{config.learning_rate:g}",
        config.optimizer,
        f"wd{config.weight_decay:g}",
        "aug" if config.augmentation else "plain",
        "pre" if config.pretrained else "scratch",
        *_further_words(config, 0),
    ]
    return "-".join(words).replace(" ", "-")


def kind_name(config: RunConfig) -> str:
    """Name the kind of training: architecture, start, and what is learnt from.

    Optimizer, learning rate, weight decay, batch size and repeat vary within a kind.

    Args:
        config: the run.
    """
    words = [
        config.architecture,
        "pretrained" if config.pretrained else "scratch",
        "augmented" if config.augmentation else "plain",
        *_further_words(config, 1),
    ]
    return " ".join(words).replace("_", " ").replace("+", " and ")


def _further_words(config: RunConfig, place: int) -> list[str]:
    """What a run has beyond the paper's axes, see ``_WORDS``."""
    changed = _changed(config)
    percent = 100 * config.label_noise
    return [
        words[place].format(changed[name], percent)
        for name, words in _WORDS.items()
        if name in changed
    ]


def _changed(config: RunConfig) -> dict[str, Any]:
    """Hyperparameters that have other values than their defaults."""
    values = asdict(config).items()
    return {
        name: value for name, value in values if value != getattr(RunConfig, name, None)
    }


def config_from(record: Mapping[str, Any]) -> RunConfig:
    """Rebuild a configuration from ``config.json`` or a row of the catalogue.

    Args:
        record: values by hyperparameter; other entries are ignored.
    """
    values = {name: record[name] for name in HYPERPARAMETERS if name in record}
    return RunConfig(**values)


def runs_of_study(
    axes: Mapping[str, Sequence],
    fixed: Mapping[str, Any],
    *,
    blocks: Sequence[Mapping] = (),
    repeats: int = 1,
    seed: int = 0,
) -> list[RunConfig]:
    """List the runs of a study in the order in which they are trained.

    The order is balanced: if training ends early, the levels of each axis have been
    used about equally often.

    Args:
        axes: levels by hyperparameter.
        fixed: values of the other hyperparameters.
        blocks: each is a full factorial of the axes, with the levels that it changes,
            such as ``{"architecture": ["resnet34"]}`` or ``{"repeat": [1]}``. Runs of
            earlier blocks are not repeated. Without blocks the study is one full
            factorial of the axes.
        repeats: number of runs of each combination, in blocks without "repeat".
        seed: breaks ties of the order.
    """
    runs: list[RunConfig] = []
    for block in blocks or [{}]:
        levels = {**axes, "repeat": range(repeats), **block}
        candidates = [
            RunConfig(**{**fixed, **dict(zip(levels, combination, strict=True))})
            for combination in itertools.product(*levels.values())
        ]
        new_runs = [run for run in candidates if run not in runs]
        runs += balanced(new_runs, seed)
    return runs


def balanced(runs: Sequence[RunConfig], seed: int = 0) -> list[RunConfig]:
    """Order runs so that the first ones use all levels about equally often.

    Greedily: the next run is the one whose levels, and pairs of levels of two axes,
    were used least so far. A single level weighs more than all pairs together.

    Args:
        runs: to be ordered.
        seed: breaks ties.
    """
    table = pd.DataFrame(map(asdict, runs))
    # (runs, axes): the number of each level, without axes of a single level
    levels = table.apply(lambda column: pd.factorize(column)[0]).to_numpy()
    levels = levels[:, levels.any(0)]
    axes = levels.shape[1]
    level_weight = axes * (axes + 1) / 2
    # How often the levels of each run, and their pairs, were used so far, weighted.
    uses = np.zeros(len(runs))
    shuffled = np.random.default_rng(seed).permutation(len(runs))
    ordered = []
    for _ in runs:
        run = shuffled[uses[shuffled].argmin()]
        shared = (levels == levels[run]).sum(1)  # levels that each run has in common
        uses += shared * (level_weight + (shared - 1) / 2)
        uses[run] = np.inf  # it is not taken again
        ordered.append(runs[run])
    return ordered


def levels_table(axes: Iterable[str], runs: Sequence[RunConfig]) -> pd.DataFrame:
    """Tabulate the levels of each axis that the runs of a study have.

    Args:
        axes: hyperparameters, in the order to show.
        runs: runs of the study.

    Returns:
        Columns hyperparameter and levels, a text.
    """
    table = pd.DataFrame(map(asdict, runs))[[*axes]]
    levels = table.agg(lambda column: ", ".join(map(str, sorted(set(column)))))
    return levels.rename_axis("hyperparameter").reset_index(name="levels")


def rows_of_run(
    labels: ArrayLike, config: RunConfig
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of training images that a run is fitted to, and that it holds out.

    A smaller ``images_per_class`` selects a subset of what a larger one selects.

    Args:
        labels: (n,) of the training images of the study.
        config: the run.

    Returns:
        Both ascending; none is held out if rule 3 reads the test images.
    """
    # 1: a stream of its own, of this order; see ``looking`` for others.
    order = np.random.default_rng([config.seed, 1]).permutation(len(labels))
    if config.images_per_class:
        shuffled = pd.Series(np.asarray(labels)[order])
        rank_in_class = shuffled.groupby(shuffled).cumcount().to_numpy()
        order = order[rank_in_class < config.images_per_class]
    held_out = 0
    if config.rule3_split == "holdout":
        held_out = max(1, round(len(order) * config.holdout_fraction))
    return np.sort(order[held_out:]), np.sort(order[:held_out])
