"""Models of a study: networks that can be loaded, with facts about them."""

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
from helpers.training.catalogue import load_network, start_path, weights_path
from helpers.training.config import RunConfig, config_from, rows_of_run
from helpers.training.run import initial_network


@dataclass(frozen=True)
class Model:
    """A snapshot of a study's run, or a user's checkpoint.

    Attributes:
        model_id: its name.
        load: the network on a device, in eval mode.
        facts: its row of the catalogue, or facts about a checkpoint.
        initial: the network before its first step; None where it is unknown.
        normalise: from uint8 images to the network's input.
        training_images: number of images that it was fitted to; None where unknown.
        weights: digest of its weights; "" where unknown.
        at_hand: whether it can be loaded here.
    """

    model_id: str
    load: Callable[..., nn.Module] = field(repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    initial: Callable[[], nn.Module | None] = field(default=type(None), repr=False)
    normalise: Callable[[Tensor], Tensor] = field(
        default=resnet.normalise_images, repr=False
    )
    training_images: int | None = field(default=None, repr=False)
    weights: str = field(default="", repr=False)
    at_hand: bool = field(default=True, repr=False)

    def __str__(self) -> str:
        """Its id, as messages name it."""
        return self.model_id


def models_of(work: Path, catalogue: pd.DataFrame, data: StudyData) -> list[Model]:
    """The models of a study.

    Args:
        work: folder of the study.
        catalogue: table of the study's models, or some of its rows. Rows without a
            snapshot, of diverged runs, are skipped.
        data: the study's images.

    Returns:
        A model for each row with a snapshot, in the order of the rows.
    """
    classes = len(data.classes)
    models = []
    for row in catalogue[catalogue["snapshot"] != "none"].to_dict("records"):
        config = config_from(row)
        model = Model(
            row["model_id"],
            partial(load_network, work, row, classes),
            row,
            partial(_initial, work, config, classes),
            training_images=len(rows_of_run(data.train.labels, config)[0]),
            weights=row.get("digest", ""),
            at_hand=weights_path(work, row).is_file(),
        )
        models.append(model)
    return models


def _initial(work: Path, config: RunConfig, classes: int) -> nn.Module | None:
    """The network of a run before its first step; None where its start is not here."""
    if not config.pretrained:
        return initial_network(config, classes, None)
    start = read_tensors(start_path(work, config.weights))
    return None if start is None else initial_network(config, classes, start)
