"""The hyperparameter grid: what one run is, its name, and which runs a study has (Du et al. 2024, Table 2)."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from helpers.files import digest
from helpers.parameters import LIMITS, outside
from helpers.training.strong_augmentation import NONE

PLAIN = "plain"  # the level of ``looking`` of a network that is told nothing
OPTIMIZERS = ("adam", "sgd")
PRECISIONS = ("float32", "bfloat16")

# The paper's seven axes, in the order of its Table 2; any other field of RunConfig may be an axis as well.
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
    """Everything that decides the outcome of one training run; equal configurations are the same run on any machine."""

    architecture: str
    batch_size: int
    learning_rate: float
    optimizer: str
    weight_decay: float
    augmentation: bool
    pretrained: bool
    data: str  # fingerprint of the images, labels and boxes; not where they lie
    weights: str = ""  # what the pretrained weights are: a digest, a name, or the run that made them; "" from scratch
    repeat: int = 0
    images_per_class: int = 0  # 0 is all
    label_noise: float = 0.0  # fraction of training labels replaced by another class
    stem: str = "imagenet"
    width: float = 1.0
    last_stride: int = 2  # of the last stage; 1 doubles the side of its map
    precision: str = "float32"  # of the products in a training step; weights, statistics, loss and optimizer are float32 in any case
    momentum: float = 0.9  # of SGD; the paper does not state one
    max_epochs: int = 150  # rule 4
    loss_threshold: float = 0.1  # rule 1
    accuracy_threshold: float = 0.95  # rule 2
    rule3_split: str = "holdout"  # where rule 3 reads the error: "holdout", or "test" (the paper), which selects the gap on the test images
    holdout_fraction: float = (
        0.1  # of the training images, only with rule3_split "holdout"
    )
    seed: int = 0
    looking: str = (
        PLAIN  # how training tells the network where to look, and how strongly
    )
    matched_accuracy: float = (
        0.0  # a snapshot at the first epoch above this training accuracy; 0 takes none
    )
    label_smoothing: float = 0.0  # share of the target that all classes divide
    frozen_stages: int = 0  # of a pretrained start: stem and first stages that stay
    strong_augmentation: str = NONE  # crops, erasing, mixup, joined by +

    def __post_init__(self) -> None:
        """Refuse values that no run can have, naming the hyperparameter and what is allowed."""
        for name, limit in _LIMITS.items():
            if fault := outside(limit, getattr(self, name)):
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
# Hyperparameters that came later: at these values a run is what it was, and so is its id.
_LATER = {
    "looking": PLAIN,
    "matched_accuracy": 0.0,
    "label_smoothing": 0.0,
    "frozen_stages": 0,
    "strong_augmentation": NONE,
}
# The limits of a hyperparameter are those of the notebooks' parameter, which is in the plural where it lists the levels of an axis.
_LIMITS = {
    name: LIMITS.get(name) or LIMITS.get(f"{name}s", "[0, inf)")
    for name in HYPERPARAMETERS
    if name not in _FREE
}
_LIMITS["looking"] = LIMITS["looking_levels"]


def cell_name(config: RunConfig) -> str:
    """Name of the configuration of hyperparameters: everything but the repeat. Its runs are resampled together."""
    rate, decay = f"lr{config.learning_rate:g}", f"wd{config.weight_decay:g}"
    start = [
        "aug" if config.augmentation else "plain",
        "pre" if config.pretrained else "scratch",
    ]
    parts = [
        config.architecture,
        f"b{config.batch_size}",
        rate,
        config.optimizer,
        decay,
        *start,
    ]
    parts += [f"n{config.images_per_class}"] if config.images_per_class else []
    parts += [f"noise{config.label_noise:g}"] if config.label_noise else []
    parts += [] if config.looking == PLAIN else [config.looking.replace(" ", "-")]
    if config.strong_augmentation != NONE:
        parts.append(config.strong_augmentation)
    if config.label_smoothing:
        parts.append(f"smooth{config.label_smoothing:g}")
    if config.frozen_stages:
        parts.append(f"frozen{config.frozen_stages}")
    return "-".join(parts)


def kind_name(config: RunConfig) -> str:
    """Kind of training: what a network learns from and where it starts. Optimizer, rate, decay, batch and repeat vary within a kind."""
    parts = [
        config.architecture,
        "pretrained" if config.pretrained else "scratch",
        "augmented" if config.augmentation else "plain",
    ]
    parts += [f"{config.images_per_class} a class"] if config.images_per_class else []
    parts += [f"{config.label_noise:.0%} wrong labels"] if config.label_noise else []
    parts += [] if config.looking == PLAIN else [config.looking.replace("_", " ")]
    if config.strong_augmentation != NONE:
        parts.append(config.strong_augmentation.replace("+", " and "))
    if config.label_smoothing:
        parts.append(f"labels smoothed by {config.label_smoothing:g}")
    if config.frozen_stages:
        parts.append(f"stem and {config.frozen_stages} stages frozen")
    return " ".join(parts)


def run_id(config: RunConfig) -> str:
    """Name of a run: readable hyperparameters, the repeat, and 8 hex digits over the whole configuration."""
    return f"{cell_name(config)}-r{config.repeat}-{config_digest(asdict(config))}"


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
    return digest(changed)


def config_from(record: Mapping[str, Any]) -> RunConfig:
    """Rebuild a configuration from ``config.json`` or a row of the catalogue (Python's numbers), ignoring what else stands in it."""
    return RunConfig(
        **{name: record[name] for name in HYPERPARAMETERS if name in record}
    )


def grid(
    axes: Mapping[str, Sequence[Any]], repeats: int, fixed: Mapping[str, Any]
) -> list[RunConfig]:
    """Every combination of the axes' levels, ``repeats`` times with different seeds; an axis "repeat" names its own."""
    levels = {**axes} if "repeat" in axes else {**axes, "repeat": range(repeats)}
    return [
        RunConfig(**{**fixed, **dict(zip(levels, chosen, strict=True))})
        for chosen in itertools.product(*levels.values())
    ]


def runs_of_study(
    axes: Mapping[str, Sequence],
    fixed: Mapping[str, Any],
    *,
    blocks: Sequence[Mapping] = (),
    repeats: int = 1,
    seed: int = 0,
) -> list[RunConfig]:
    """Runs of a study in the order in which they are trained; any first of them are as balanced as they can be.

    Each block is a full factorial of its own, the axes of the study with the levels that the block changes, such as
    ``{"architecture": ["resnet34"]}`` or ``{"repeat": [1]}``, without the runs of earlier blocks. Without blocks it is the whole grid.
    """
    found: list[RunConfig] = []
    for block in blocks or [{}]:
        found += balanced(
            [
                run
                for run in grid({**axes, **block}, repeats, fixed)
                if run not in found
            ],
            seed,
        )
    return found


def balanced(runs: Sequence[RunConfig], seed: int = 0) -> list[RunConfig]:
    """Order runs greedily: next is the one whose levels, and pairs of levels, of all axes were used least so far; ``seed`` breaks ties."""
    table = pd.DataFrame(map(asdict, runs), dtype=object).astype(str)
    axes = [name for name in table if table[name].nunique() > 1]
    keys = [*((name,) for name in axes), *itertools.combinations(axes, 2)]
    codes = np.array(
        [table.groupby(list(key)).ngroup() for key in keys], dtype=int
    ).reshape(len(keys), len(runs))
    weights = np.array(
        [len(keys) if len(key) == 1 else 1 for key in keys]
    )  # a single level counts more than a pair
    used, rows = (
        np.zeros(codes.shape),
        np.arange(len(keys)),
    )  # how often each level, or pair of levels, was taken
    left, chosen = np.random.default_rng(seed).permutation(len(runs)), []
    while len(left):
        pick = left[np.argmin(weights @ used[rows[:, None], codes[:, left]])]
        used[rows, codes[:, pick]] += 1
        chosen.append(runs[pick])
        left = left[left != pick]
    return chosen


def levels_table(
    axes: Mapping[str, Sequence[Any]], runs: Sequence[RunConfig]
) -> pd.DataFrame:
    """Levels of each hyperparameter that the runs of a study have: hyperparameter, levels; 0 images per class is "all"."""
    rows = []
    for name, asked in axes.items():
        taken = [getattr(run, name) for run in runs]
        levels = [level for level in dict.fromkeys([*asked, *taken]) if level in taken]
        words = [
            "all" if name == "images_per_class" and not level else str(level)
            for level in levels
        ]
        rows.append({"hyperparameter": name, "levels": ", ".join(words)})
    return pd.DataFrame(rows)
