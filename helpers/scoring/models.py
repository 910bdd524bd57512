"""A network that can be loaded, with what is known of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor, nn

from helpers.data.images import StudyData
from helpers.files import read_tensors
from helpers.networks import resnet
from helpers.training.catalogue import (
    load_network,
    run_folder,
    snapshot_path,
    start_path,
    weights_digests,
)
from helpers.training.config import RunConfig, config_from
from helpers.training.run import initial_network, rows_of_run


@dataclass(frozen=True)
class Model:
    """A snapshot of a study's run, or a checkpoint of one's own."""

    model_id: str
    load: Callable[..., nn.Module] = field(repr=False)  # on a device, in eval mode
    facts: Mapping[str, Any] = field(
        default_factory=dict, repr=False
    )  # its row of the catalogue, or what is known of a checkpoint
    initial: Callable[[], nn.Module | None] = field(
        default=type(None), repr=False
    )  # before its first step; None where not known
    normalise: Callable[[Tensor], Tensor] = field(
        default=resnet.normalise_images, repr=False
    )  # uint8 images to network input
    training_images: int | None = field(
        default=None, repr=False
    )  # that it was fitted to, where known
    weights: str = field(default="", repr=False)  # their digest, "" where not known
    at_hand: bool = field(default=True, repr=False)  # whether it can be loaded here

    def __str__(self) -> str:
        """Its id, as messages name it."""
        return self.model_id


def models_of(work: Path, catalogue: pd.DataFrame, data: StudyData) -> list[Model]:
    """The models of a catalogue, or of a table with its columns, row by row; a diverged run without a snapshot is none."""
    found, classes = [], len(data.classes)
    digests: dict[str, dict[str, str]] = {}
    for row in catalogue[catalogue["snapshot"] != "none"].to_dict("records"):
        config, run = config_from(row), row["run_id"]
        if run not in digests:
            digests[run] = weights_digests(work, run)
        load, initial = (
            partial(load_network, work, row, classes),
            partial(_initial, work, config, classes),
        )
        found.append(
            Model(
                row["model_id"],
                load,
                row,
                initial,
                training_images=len(rows_of_run(data, config)[0]),
                weights=digests[run].get(row["snapshot"], ""),
                at_hand=snapshot_path(run_folder(work, run), row["snapshot"]).is_file(),
            )
        )
    return found


def _initial(work: Path, config: RunConfig, classes: int) -> nn.Module | None:
    """The network of a run as it was before its first step; None when its pretrained start was not kept."""
    start = (
        read_tensors(start_path(work, config.weights)) if config.pretrained else None
    )
    return (
        None
        if config.pretrained and start is None
        else initial_network(config, classes, start)
    )
