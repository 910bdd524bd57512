"""The registry and the sharing of what measures need."""

import re
from typing import get_args

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from helpers.files import PROJECT_ROOT
from helpers.measures import evidence, registry
from helpers.measures.registry import MEASURES
from helpers.networks import Undefined, resnet
from helpers.parameters import TYPES
from tests.conftest import SMALL


@pytest.fixture
def lists(monkeypatch):
    """Empty lists of measures and providers, to be filled by a test."""
    monkeypatch.setattr(registry, "MEASURES", {})
    monkeypatch.setattr(registry, "SOURCES", {})


def network():
    return nn.Linear(1, 1)


def enter(function, **named):
    registry.measure("norms", -1, "a paper", **named)(function)
    return registry.MEASURES[function.__name__]


def test_what_two_measures_need_is_worked_out_once(lists):
    calls = []

    @registry.provides
    def base(seed):
        calls.append(seed)
        return seed + 1

    def double(base):
        return 2 * base

    def triple(base, transport_images):
        return 3 * base + transport_images

    settings = evidence.MeasureSettings(seed=4, transport_images=100)
    scores, _ = evidence.score([enter(double), enter(triple)], {}, settings)
    assert scores["value"].tolist() == [10, 115]
    assert calls == [4]


def test_what_cannot_be_had_is_nan_with_a_reason_for_all_that_needs_it(lists):
    @registry.provides
    def start(initial_network):
        raise Undefined("no initial weights were given\nsecond line")

    def near(start):
        return 1.0

    def far(start):
        return {"a": 1.0, "b": 2.0}

    def there(seed):
        return np.inf

    items = [enter(near), enter(far, variants=("a", "b")), enter(there)]
    scores, _ = evidence.score(items, {}, evidence.MeasureSettings())
    assert scores["value"].isna().all()
    *reasons, of_infinity = scores["reason"]
    assert reasons == ["no initial weights were given"] * 3
    assert of_infinity == "the value is inf"
    assert sorted(scores["variant"]) == ["", "", "a", "b"]


@pytest.mark.parametrize("fault", [NameError("x"), ValueError("x"), RuntimeError("x")])
def test_an_error_of_a_measure_itself_stops(lists, fault):
    def broken():
        raise fault

    with pytest.raises(type(fault), match=r"^x$"):
        evidence.score([enter(broken)], {}, evidence.MeasureSettings())


def test_the_first_variant_has_the_measures_own_name(lists):
    item = enter(network, variants=("one", "two"))
    assert item.column("") == item.column("one") == "network"
    table = registry.columns()
    assert table["column"].tolist() == ["network", "network (two)"]
    assert table["title"].tolist() == ["network", "network, two"]
    assert list(registry.ranked()) == ["network"]


@pytest.mark.parametrize("enter", [registry.provides, registry.measure("norms", 1, "")])
@pytest.mark.parametrize("name", ["margins", "iou"])
def test_the_name_of_a_value_or_a_measure_of_the_workbook_is_taken(enter, name):
    def other():
        return 0.0

    other.__name__ = name
    before = registry.SOURCES[name]
    with pytest.raises(ValueError, match=f"'{name}' already exists"):
        enter(other)
    assert registry.SOURCES[name] is before


def test_the_network_is_scored_in_eval_mode_and_left_as_it_was(tiny_given, lists):
    def training(network):
        return float(network.training)

    enter(training)
    model = network().train()
    table = evidence.score_network(model, tiny_given["images"], ["training"])
    assert table["value"].tolist() == [0.0]
    assert model.training


def test_a_name_that_does_not_exist_is_told():
    with pytest.raises(ValueError, match=r"'localisation' \(did you mean 'localizat"):
        evidence.score_network(network(), None, ["localisation"])
    with pytest.raises(ValueError, match=r"'cam_treshold' \(did you mean 'cam_thres"):
        evidence.score_network(network(), None, ["norms"], cam_treshold=0.1)


def test_every_measure_has_a_source_a_summary_and_needs_that_exist():
    settings = evidence.MeasureSettings.__dataclass_fields__
    known = {*evidence.INPUTS, *registry.SOURCES, *settings}
    for item in MEASURES.values():
        assert item.source and item.function.__doc__, item.name
    for name, source in registry.SOURCES.items():
        assert set(registry.needs(source)) <= known, name


def test_the_documentation_names_measures_that_are_there_and_every_family():
    text = (PROJECT_ROOT / "docs/measures.md").read_text()
    for family in registry.FAMILIES:
        (row,) = re.findall(rf"^\| {family} \|(.*?)\|", text, re.MULTILINE)
        names = {item.name for item in registry.measures_of_families([family])}
        assert {*re.findall(r"`(\w+)`", row)} == names
    assert set(get_args(TYPES["families"])) == set(registry.FAMILIES)


def test_the_example_of_a_measure_in_the_documentation_works(tiny_given, monkeypatch):
    text = (PROJECT_ROOT / "docs/measures.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (example,) = [block for block in blocks if "@measure" in block]
    monkeypatch.setattr(registry, "MEASURES", {})
    monkeypatch.setattr(registry, "SOURCES", dict(registry.SOURCES))
    exec(example, {})
    (item,) = registry.MEASURES.values()
    table, _ = evidence.score([item], tiny_given, evidence.MeasureSettings())
    assert 0.1 < table["value"].iloc[0] <= 1
    assert registry.columns()["title"].tolist() == ["peakedness"]


def bottlenecks():
    return resnet.build("resnet50", 3, stem="imagenet", width=0.125, seed=0)


def transformer():
    return torchvision.models.VisionTransformer(16, 8, 2, 2, 32, 64, num_classes=3)


def without_zeros(network):
    """Move weights that begin as zeros (a head, the last scale of a block), with which norms and logits would be degenerate."""
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.uniform_(parameter, 0.1, 0.2)
    return network


@pytest.mark.parametrize("build", [bottlenecks, transformer])
def test_every_measure_has_a_number_or_a_reason_of_one_line(build, tiny_module_given):
    torch.manual_seed(0)
    network, start = without_zeros(build()), without_zeros(build())
    given = tiny_module_given | {"network": network, "initial_network": start}
    small = evidence.MeasureSettings(**SMALL)
    scored, _ = evidence.score(MEASURES.values(), given, small)
    assert not scored["reason"].str.contains("\n").any()
    assert ((scored["reason"] == "") == scored["value"].notna()).all()
    assert set(scored["measure"]) == set(MEASURES)
