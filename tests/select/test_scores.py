"""Checkpoints scored one after the other: a fault of one is its own row, and images that are met are passed once."""

import numpy as np
import pandas as pd
import pytest
import torch

from helpers.measures.evidence import MeasureSettings
from helpers.networks import resnet
from helpers.networks.hooks import prepared
from helpers.networks.weights import Form
from helpers.select import scores
from helpers.select.images import OwnImages
from helpers.select.load import Candidate, Loaded


class Fails(torch.nn.Module):
    def forward(self, images):
        raise RuntimeError("no such images")


def own_images(count, seed, labelled=True):
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(count) % 3 if labelled else None
    boxes = torch.tensor([[[4, 4, 20, 20]]], dtype=torch.int16).expand(count, 1, 4)
    names = tuple(f"{number}.png" for number in range(count))
    classes = ("a", "b", "c") if labelled else ()
    why = "" if labelled else "images of a target have no labels"
    return OwnImages(pixels, boxes, names, classes, labels, why, torch.ones(count, dtype=bool), count, (32,) * count, pd.DataFrame())


@pytest.fixture(scope="module")
def scored():
    network = resnet.build("resnet18", 3, stem="strided", width=0.125, seed=0).eval()
    wide = resnet.build("resnet18", 4, stem="strided", width=0.125, seed=0).eval()
    made = {
        "fails.pt": Loaded(Fails(), Form("own"), 3),
        "good.pt": Loaded(network, Form("resnet18"), 3),
        "four.pt": Loaded(wide, Form("resnet18"), 4),
    }
    candidates = [Candidate(name, lambda loaded=loaded: loaded) for name, loaded in made.items()]
    met = {"target": own_images(9, 1, labelled=False), "labelled": own_images(12, 2)}
    found = list(scores.score_checkpoints(candidates, own_images(6, 0), MeasureSettings(), met=met, extra=False))
    return network, met, found


def test_one_networks_fault_is_its_own_row_with_a_reason(scored):
    facts, values = scores.score_tables(scored[2])
    assert facts["checkpoint"].tolist() == ["fails.pt", "good.pt", "four.pt"]
    assert facts["fault"].iloc[0] == "no such images"
    assert facts["fault"].iloc[1] == ""
    assert "4 outputs and the images lie in 3 class folders" in facts["fault"].iloc[2]
    assert values["checkpoint"].unique().tolist() == ["good.pt"]
    assert [bool(each.logits) for each in scored[2]] == [False, True, False]


def test_what_checkpoints_say_of_images_that_they_met_is_by_hand_that_of_one_pass(scored):
    network, met, found = scored
    told = scores.scores_met(found, met["labelled"], MeasureSettings())
    with torch.no_grad():
        target, held = (network(prepared(each.images, resnet.normalise_images, "cpu")) for each in met.values())
    assert told.on_target.index.tolist() == ["good.pt"]
    assert told.on_target.loc["good.pt", "average_confidence"] == pytest.approx(target.softmax(1).amax(1).mean().item(), abs=1e-3)
    right = (held.argmax(1) == met["labelled"].labels).numpy()
    np.testing.assert_array_equal(told.right.loc["good.pt"].to_numpy(dtype=bool), right)
    # Where the labelled images are the target, what rests on them as a holdout is their accuracy.
    assert told.on_labelled.loc["good.pt", "difference_of_confidences"] == pytest.approx(right.mean())
    assert np.isnan(told.on_target.loc["good.pt", "agreement_of_repeats"])
    without = scores.scores_met(found, None, MeasureSettings())
    assert without.right is None


def test_without_images_to_meet_there_is_nothing():
    assert scores.scores_met([], None, MeasureSettings()) == (None, None, None)
