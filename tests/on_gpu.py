"""What a study computes on a GPU, on 36 images; tests run it where one is pretended.

    python -m tests.on_gpu FOLDER    # prints one line of JSON

Training with an interruption, a score of each family, ablations, untrained networks,
the probe of Kappa, what judging asks of checkpoints, and failures of the machine.
"""

import contextlib
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import safetensors.torch
import torch

from helpers.checkpoints import judging
from helpers.checkpoints.inputs import Preparation
from helpers.choices import compute
from helpers.data import images
from helpers.data.images import choose_images
from helpers.files import folder_of_run
from helpers.kappa import networks, noise, probing
from helpers.measures import registry
from helpers.measures.evidence import MeasureSettings, score_network
from helpers.scores import measuring, models, scoring_set, store
from helpers.scores import targets as shifted
from helpers.training import catalogue, pool, run
from helpers.training.config import RunConfig
from tests import pretended_gpu
from tests.conftest import SMALL, TINY_SCENES
from tests.training.conftest import configuration

DEVICE = "cuda"
SETTINGS = MeasureSettings(**SMALL)


def interrupted(config: RunConfig, data: Any, folder: Path) -> dict[str, Any]:
    """Interrupt a run in its third epoch, resume it, and compare with one that went on."""
    train_step, train_epoch = run.train_step, run.train_epoch
    timed_kernels = []

    def observed_step(*arguments):
        timed_kernels.append(torch.backends.cudnn.benchmark)
        return train_step(*arguments)

    def interrupt(*arguments):
        if arguments[4] == 3:  # the epoch
            raise KeyboardInterrupt
        return train_epoch(*arguments)

    with mock.patch.object(run, "train_step", observed_step):
        whole = run.train_run(config, data, folder / "whole", device=DEVICE)
    timed_after = torch.backends.cudnn.benchmark
    place = folder_of_run(folder, str(config))
    stopped = contextlib.suppress(KeyboardInterrupt)
    with mock.patch.object(run, "train_epoch", interrupt), stopped:
        run.train_run(config, data, place, device=DEVICE)
    checkpoint = (place / run.CHECKPOINT).is_file()
    resumed = run.train_run(config, data, place, device=DEVICE)
    weights = [
        safetensors.torch.load_file(path / "snapshot-stop.safetensors")
        for path in (folder / "whole", place)
    ]
    equal = all(torch.equal(x, weights[1][name]) for name, x in weights[0].items())
    return {
        "checkpoint": checkpoint,
        "epochs": [whole["epochs"], resumed["epochs"]],
        "equal": equal,
        "timed_kernels": [all(timed_kernels), timed_after],
    }


class Study:
    """A study of one run, with what scoring needs of it."""

    def __init__(self, work: Path, data: Any) -> None:
        """Read its catalogue."""
        self.work, self.data = work, data
        self.table = catalogue.read_catalogue(work)
        self.models = models.models_of(work, self.table, data)[-1:]
        self.scored_on = scoring_set.scoring_set(self.table, data)

    def store(self, name: str = "") -> store.Store:
        """A store on the GPU, or another one of that name."""
        load = partial(images.images_of_study, self.work)
        return store.Store(self.work / name, load, device=DEVICE, jobs=1)


def every_family(study: Study) -> dict[str, Any]:
    """Score all measures, and list those that have no value with their reasons."""
    families = [
        name for name in registry.FAMILIES if registry.measures_of_families([name])
    ]
    families.remove("unlabelled")
    given = study.store(), study.models
    scores = measuring.score(*given, families, SETTINGS, study.scored_on).scores()
    on_targets = shifted.on_targets(*given, study.data, ["brightness_1.5"], SETTINGS)
    on_shift = on_targets.scores([*on_targets.keys][-1])
    reasons = scores.loc[scores["reason"] != "", ["measure", "reason"]]
    return {
        "families": sorted({registry.MEASURES[x].family for x in scores["measure"]}),
        "values": int(scores["value"].notna().sum()),
        "unlabelled": int(on_shift["value"].notna().sum()),
        "reasons": dict(reasons.drop_duplicates().itertuples(index=False)),
    }


def ablations(study: Study) -> dict[str, Any]:
    """Other maps, layers, sizes and attributions, and a network that learnt nothing."""
    settings = compute.Settings(
        study.scored_on,
        {},
        thresholds=(0.1, 0.2),
        images=6,
        methods=("smooth_grad_cam_plus_plus", "eigen_cam", "score_cam"),
        noise={"noise_samples": 1, "noise_std": 0.3, "channels": 2},
        scales=(0.5,),
        attributions=("saliency",),
    )
    kept = compute.score_choices(study.store(), study.models, settings)
    random = compute.untrained_networks(study.store(), study.table, 1, settings)
    parts = sorted(kept.scores()["part"].unique())
    return {"parts": parts, "untrained": len(random)}


def kappa(study: Study) -> dict[str, Any]:
    """Probes of features under the noise of an auto-encoder."""
    model = study.models[0]
    facts = dict(model.facts) | {"family": "resnet", "model": "r", "origin": "made"}
    backbone = replace(
        model,
        facts=facts,
        load=lambda device: networks.without_head(model.load(device)),
    )
    levels = [noise.Level(0.7, 0.71, 1.0), noise.Level(1.0, 1.0, 0.0)]
    degraded = noise.Degradation(0, noise.AutoEncoder().eval(), levels)
    kept = probing.probes(study.store(), [backbone], study.data, degraded, [2, 3], 0.01)
    counted = [kept.record("probes", backbone.model_id)["predicted"].size]
    noise.train_autoencoder(study.data.train.images[:16], seed=0, device=DEVICE)
    return {"predicted": counted}


def select(study: Study) -> dict[str, Any]:
    """What is asked of checkpoints of one's own."""
    images = study.data.train
    preparation = Preparation(images.images.shape[-1], *judging.NORMALISATIONS[0])
    network = study.models[0].load(DEVICE)
    facts = judging.facts_of(network, images, preparation, DEVICE, 1)
    return {"accuracy": facts["training_accuracy"]}


def failures(study: Study) -> dict[str, Any]:
    """A broken GPU leaves no record."""
    given = (
        study.store("broken"),
        study.models,
        ["prediction"],
        SETTINGS,
        study.scored_on,
    )
    broken = ""
    with mock.patch.dict(pretended_gpu.LIMITS, operators=50):
        try:
            measuring.score(*given)
        except RuntimeError as fault:
            broken = str(fault)
    records = [path.name for path in (study.work / "broken").rglob("*.npz")]
    return {"broken": broken, "records": records}


def waits(study: Study) -> dict[str, int]:
    """How often the host waits while few and many images are scored in one pass."""
    network = study.models[0].load(DEVICE)
    limits = pretended_gpu.LIMITS
    counts = {}
    for number in (100, 1000):
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (number, 3, 16, 16), generator=generator)
        corners = torch.randint(0, 8, (number, 1, 2), generator=generator)
        boxes = torch.cat([corners, corners + 6], 2).short()
        names = tuple(map(str, range(number)))
        labels = torch.arange(number) % 3
        of_pass = images.ImageSet(pixels.byte(), labels, boxes, names)
        before = limits["waits"]
        families = ["localization", "prediction"]
        score_network(network, of_pass, families, device=DEVICE)
        counts[str(number)] = limits["waits"] - before
    return counts


def mixture() -> str:
    """What a mixture of devices raises, and is noted as the last of the faults."""
    try:
        torch.ones(2, device=DEVICE) + torch.ones(2)
    except RuntimeError as fault:
        return str(fault)
    return ""


def main(folder: Path) -> dict[str, Any]:
    """All of it, with the seconds that each part took."""
    pool.choose_device(DEVICE)
    data = choose_images(folder, **TINY_SCENES)
    results: dict[str, Any] = {"seconds": {}}
    changes = {"last_stride": 1, "max_epochs": 3, "looking": "map_in_box 1"}
    config = replace(configuration(data), **changes)
    results["interrupted"] = interrupted(config, data, folder)
    study = Study(folder, data)
    for part in (every_family, waits, ablations, kappa, select, failures):
        started = time.process_time()
        results[part.__name__] = part(study)
        results["seconds"][part.__name__] = round(time.process_time() - started, 1)
    results["mixture"] = mixture()
    return results


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
