"""Hyperparameters of a run, its name, and the runs of a study."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from helpers.files import json_digest
from helpers.parameters import LIMITS, NUMBERS, outside
from helpers.training.strong_augmentation import NONE

PLAIN = "plain"  # the level of ``looking`` of training without a guide
OPTIMIZERS = ("adam", "sgd")
PRECISIONS = ("float32", "bfloat16")

# The paper's seven axes, in the order of its Table 2; any other field of RunConfig may
# be an axis as well.
PAPER_AXES = (
    "batch_size",
    "learning_rate",
    "optimizer",
    "weight_decay",
    "architecture",
    "augmentation",
    "pretrained",
)


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the outcome of one training run, on any machine."""

    architecture: str
    batch_size: int
    learning_rate: float
    optimizer: str
    weight_decay: float
    augmentation: bool
    pretrained: bool
    data: str  # fingerprint of the images, labels and boxes; not where they lie
    weights: str = ""  # identity of the pretrained weights; "" from scratch
    repeat: int = 0
    images_per_class: int = 0  # 0 is all
    label_noise: float = 0.0  # fraction of training labels replaced by another class
    stem: str = "imagenet"
    width: float = 1.0
    last_stride: int = 2  # of the last stage; 1 doubles the side of its map
    precision: str = "float32"  # of the products in a step; all else is float32
    momentum: float = 0.9  # of SGD; the paper does not state one
    max_epochs: int = 150  # rule 4
    loss_threshold: float = 0.1  # rule 1
    accuracy_threshold: float = 0.95  # rule 2
    # Where rule 3 reads the error: "holdout", or "test" (the paper), which selects the
    # gap on the test images.
    rule3_split: str = "holdout"
    holdout_fraction: float = 0.1  # of the training images, with "holdout" alone
    seed: int = 0
    looking: str = PLAIN  # where training tells the network to look, and how strongly
    # A snapshot at the first epoch above this training accuracy; 0 takes none.
    matched_accuracy: float = 0.0
    label_smoothing: float = 0.0  # share of the target that all classes divide
    frozen_stages: int = 0  # of a pretrained start: stem and first stages that stay
    strong_augmentation: str = NONE  # crops, erasing, mixup, joined by +

    def __post_init__(self) -> None:
        """Refuse values that no run can have."""
        for name, limit in _LIMITS.items():
            fault = outside(limit, getattr(self, name))
            if fault:
                raise ValueError(f"{name} {fault}")
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
        """Its id, as messages name it."""
        return run_id(self)


HYPERPARAMETERS = [field.name for field in fields(RunConfig)]
_FREE = ("augmentation", "pretrained", "data", "weights", "repeat")
# Hyperparameters that came later: at these values a run is what it was, with its id.
_LATER = {
    "looking": PLAIN,
    "matched_accuracy": 0.0,
    "label_smoothing": 0.0,
    "frozen_stages": 0,
    "strong_augmentation": NONE,
}
# Limits of a hyperparameter are those of the notebooks' parameter, which is in the
# plural where it lists the levels of an axis.
_LIMITS = {
    name: LIMITS.get(name) or LIMITS.get(f"{name}s", NUMBERS)
    for name in HYPERPARAMETERS
    if name not in _FREE
}
_LIMITS["looking"] = LIMITS["looking_levels"]


def configuration_name(config: RunConfig) -> str:
    """Name of a configuration of hyperparameters, without the repeat.

    Its runs are resampled together.
    """
    words = [
        config.architecture,
        f"b{config.batch_size}",
        f"lr{config.learning_rate:g}",
        config.optimizer,
        f"wd{config.weight_decay:g}",
        "aug" if config.augmentation else "plain",
        "pre" if config.pretrained else "scratch",
    ]
    if config.images_per_class:
        words.append(f"n{config.images_per_class}")
    if config.label_noise:
        words.append(f"noise{config.label_noise:g}")
    if config.looking != PLAIN:
        words.append(config.looking.replace(" ", "-"))
    if config.strong_augmentation != NONE:
        words.append(config.strong_augmentation)
    if config.label_smoothing:
        words.append(f"smooth{config.label_smoothing:g}")
    if config.frozen_stages:
        words.append(f"frozen{config.frozen_stages}")
    return "-".join(words)


def kind_name(config: RunConfig) -> str:
    """Kind of training: what a network learns from and where it starts.

    Optimizer, learning rate, weight decay, batch size and repeat vary within a kind.
    """
    words = [
        config.architecture,
        "pretrained" if config.pretrained else "scratch",
        "augmented" if config.augmentation else "plain",
    ]
    if config.images_per_class:
        words.append(f"{config.images_per_class} a class")
    if config.label_noise:
        words.append(f"{100 * config.label_noise:g}% wrong labels")
    if config.looking != PLAIN:
        words.append(config.looking.replace("_", " "))
    if config.strong_augmentation != NONE:
        words.append(config.strong_augmentation.replace("+", " and "))
    if config.label_smoothing:
        words.append(f"labels smoothed by {config.label_smoothing:g}")
    if config.frozen_stages:
        words.append(f"stem and {config.frozen_stages} stages frozen")
    return " ".join(words)


def run_id(config: RunConfig) -> str:
    """Name of a run: its configuration, the repeat, and a digest of both."""
    return (
        f"{configuration_name(config)}-r{config.repeat}-{config_digest(asdict(config))}"
    )


def config_digest(values: Mapping[str, Any]) -> str:
    """Digest of a configuration's values, of earlier versions too.

    Args:
        values: each hyperparameter with its value, as ``config.json`` holds them; one
            that came later may be missing, and counts where it is not at its default.

    Returns:
        8 hex digits.
    """
    changed = {
        name: value
        for name, value in values.items()
        if name not in _LATER or value != _LATER[name]
    }
    return json_digest(changed)


def config_from(record: Mapping[str, Any]) -> RunConfig:
    """Rebuild a configuration from ``config.json`` or a row of the catalogue.

    Args:
        record: hyperparameters as Python's numbers; all else is left.
    """
    names = [name for name in HYPERPARAMETERS if name in record]
    return RunConfig(**{name: record[name] for name in names})


def grid(
    axes: Mapping[str, Sequence[Any]], repeats: int, fixed: Mapping[str, Any]
) -> list[RunConfig]:
    """Every combination of the axes' levels, several times with different seeds.

    Args:
        axes: levels by hyperparameter; an axis "repeat" names the repeats.
        repeats: of each combination, where they are no axis.
        fixed: values of other hyperparameters.
    """
    levels = dict(axes)
    levels.setdefault("repeat", range(repeats))
    runs = []
    for combination in itertools.product(*levels.values()):
        values = dict(zip(levels, combination, strict=True))
        runs.append(RunConfig(**(dict(fixed) | values)))
    return runs


def runs_of_study(
    axes: Mapping[str, Sequence],
    fixed: Mapping[str, Any],
    *,
    blocks: Sequence[Mapping] = (),
    repeats: int = 1,
    seed: int = 0,
) -> list[RunConfig]:
    """Runs of a study in the order in which they are trained.

    The first ones, however many, are as balanced as they can be.

    Args:
        axes: levels by hyperparameter.
        fixed: values of other hyperparameters.
        blocks: each is a full factorial of its own, the axes with the levels that the
            block changes, such as ``{"architecture": ["resnet34"]}`` or ``{"repeat":
            [1]}``, without the runs of earlier blocks. Without blocks it is the whole
            grid.
        repeats: of each combination, where they are no axis.
        seed: breaks ties.
    """
    runs: list[RunConfig] = []
    for block in blocks or [{}]:
        of_block = grid({**axes, **block}, repeats, fixed)
        runs += balanced([run for run in of_block if run not in runs], seed)
    return runs


def balanced(runs: Sequence[RunConfig], seed: int = 0) -> list[RunConfig]:
    """Order runs so that levels are used equally often.

    Greedily: next is the run whose levels, and pairs of levels, of all axes were used
    least so far. A single level weighs more than a pair.

    Args:
        runs: to be ordered.
        seed: breaks ties.
    """
    table = pd.DataFrame(map(asdict, runs), dtype=object).astype(str)
    axes = [name for name in table if table[name].nunique() > 1]
    keys = [*((name,) for name in axes), *itertools.combinations(axes, 2)]
    # (keys, runs): the level, or pair of levels, that a run has.
    codes = np.zeros((len(keys), len(runs)), dtype=int)
    for number, key in enumerate(keys):
        codes[number] = table.groupby(list(key)).ngroup()
    weights = np.array([len(keys) if len(key) == 1 else 1 for key in keys])
    # How often each level, or pair of levels, was used so far.
    used = np.zeros(codes.shape)
    rows = np.arange(len(keys))
    remaining = np.random.default_rng(seed).permutation(len(runs))
    ordered = []
    while len(remaining):
        uses = used[rows[:, None], codes[:, remaining]]  # (keys, remaining)
        run = remaining[np.argmin(weights @ uses)]
        used[rows, codes[:, run]] += 1
        ordered.append(runs[run])
        remaining = remaining[remaining != run]
    return ordered


def levels_table(
    axes: Mapping[str, Sequence[Any]], runs: Sequence[RunConfig]
) -> pd.DataFrame:
    """Levels of each hyperparameter that the runs of a study have.

    Args:
        axes: levels by hyperparameter.
        runs: of the study.

    Returns:
        hyperparameter, levels; 0 images per class is "all".
    """
    rows = []
    for name, asked in axes.items():
        taken = [getattr(run, name) for run in runs]
        levels = [level for level in dict.fromkeys([*asked, *taken]) if level in taken]
        if name == "images_per_class":
            levels = [level or "all" for level in levels]
        words = ", ".join(str(level) for level in levels)
        rows.append({"hyperparameter": name, "levels": words})
    return pd.DataFrame(rows)
