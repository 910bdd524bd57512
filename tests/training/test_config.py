import itertools
from collections import Counter
from dataclasses import asdict, replace

import numpy as np

from helpers.files import PROJECT_ROOT, read_json
from helpers.training.config import (
    AXES,
    RunConfig,
    balanced,
    config_from,
    configuration_name,
    runs_of_study,
)

PAPER = {
    "batch_size": [16, 32, 64],
    "learning_rate": [1.25e-1, 1.25e-3, 1.25e-5],
    "optimizer": ["adam", "sgd"],
    "weight_decay": [0.0, 2e-4, 5e-4],
    "architecture": ["resnet18", "resnet34", "resnet50", "resnet101"],
    "augmentation": [True, False],
    "pretrained": [True, False],
}

RUN = RunConfig("resnet18", 16, 0.125, "adam", 0.0, True, True, data="d")


def test_the_papers_grid_has_864_cells_and_1728_runs_of_different_names():
    runs = runs_of_study(PAPER, {"data": "d"}, repeats=2)
    assert (*PAPER,) == AXES[:7]
    assert len({configuration_name(run) for run in runs}) == 864
    assert len({str(run) for run in runs}) == len(runs) == 1728


def test_the_id_follows_from_the_configuration_alone_and_every_field_counts():
    assert str(RUN) == str(config_from(asdict(RUN) | {"run_id": "another"}))
    changed = {
        name: value * 2 + 1 if isinstance(value, (int, float)) else f"{value}x"
        for name, value in asdict(RUN).items()
    }
    changed |= {"augmentation": False, "pretrained": False}
    runs = [replace(RUN, **{name: value}) for name, value in changed.items()]
    assert len({*map(str, runs), str(RUN)}) == len(changed) + 1


def test_runs_of_earlier_versions_keep_their_ids():
    """A hyperparameter that came later changes no id at the value that runs had."""
    runs = PROJECT_ROOT / "reports/kinds20/records/runs"
    records = [read_json(path) for path in runs.glob("*/config.json")]
    assert records
    for record in records:
        assert str(config_from(record)) == record["run_id"]
        assert "looking" not in record


def test_the_first_of_a_balanced_order_have_levels_and_pairs_of_levels_evenly():
    runs = runs_of_study(PAPER, {"data": "d"}, repeats=2)
    order = balanced(runs)
    assert set(order) == set(runs)
    assert len(order) == len(runs)
    shuffled = [runs[n] for n in np.random.default_rng(0).permutation(len(runs))]
    assert max(uneven(order[:36], axis) for axis in PAPER) <= 1
    of_pairs, by_chance = (
        max(uneven(chosen[:144], *pair) for pair in itertools.combinations(PAPER, 2))
        for chosen in (order, shuffled)
    )
    assert of_pairs < by_chance


def uneven(runs, *axes):
    """Largest difference between how often two combinations of levels occur."""
    counts = Counter(tuple(getattr(run, axis) for axis in axes) for run in runs)
    possible = itertools.product(*(PAPER[axis] for axis in axes))
    counts = [counts[combination] for combination in possible]
    return max(counts) - min(counts)


def test_blocks_follow_each_other_each_a_full_factorial_in_balanced_order():
    axes = {name: levels[:1] for name, levels in PAPER.items()}
    axes |= {"batch_size": [16, 32], "optimizer": ["adam", "sgd"]}
    axes |= {"learning_rate": [0.1, 0.01], "augmentation": [True, False]}
    blocks = [
        {"batch_size": [16]},
        {"architecture": ["resnet34"], "batch_size": [16]},
        {"batch_size": [16], "repeat": [1]},
        {},
    ]
    runs = runs_of_study(axes, {"data": "any"}, blocks=blocks, seed=3)
    assert len({str(run) for run in runs}) == len(runs) == 4 * 8
    kinds = [("resnet18", 16, 0), ("resnet34", 16, 0)]
    kinds += [("resnet18", 16, 1), ("resnet18", 32, 0)]
    for number, kind in enumerate(kinds):
        block = runs[8 * number : 8 * number + 8]
        assert {(run.architecture, run.batch_size, run.repeat) for run in block} == {
            kind
        }
        # Half of a factorial of three axes has each level twice.
        for axis in ("optimizer", "learning_rate", "augmentation"):
            counts = Counter(getattr(run, axis) for run in block[:4])
            assert sorted(counts.values()) == [2, 2]
    other_order = runs_of_study(axes, {"data": "any"}, blocks=blocks, seed=4)
    assert other_order != runs and set(other_order) == set(runs)
