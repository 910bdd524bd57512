"""Norms of weights: against the rules of the public code written once more, by hand, and on a network."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from helpers.measures import evidence, norms
from helpers.measures.registry import MEASURES

SPECTRAL = (
    "log_prod_of_spec",
    "log_prod_of_spec_over_margin",
    "log_spec_init_main",
    "log_spec_orig_main",
    "fro_over_spec",
)
SPECTRAL += ("log_sum_of_spec_over_margin", "log_sum_of_spec", "dist_spec_init")
SPECTRA = ("spectral_alpha", "spectral_alpha_hat", "stable_rank")  # see test_spectra
NAMES = [
    name
    for name, item in MEASURES.items()
    if item.family == "norms" and name not in SPECTRA
]


def small_network(seed, bias=True, strides=(1, 2)):
    """Two convolutions with settled normalisations, no padding effects to agree on, two linear layers."""
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(
        *(
            nn.Conv2d(3, 5, 3, strides[0], 1, bias=bias),
            nn.BatchNorm2d(5),
            nn.ReLU(inplace=True),
        ),
        *(
            nn.Conv2d(5, 4, 3, strides[1], 1, bias=bias),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
        ),
        *(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 6),
            nn.ReLU(),
            nn.Linear(6, 3),
        ),
    )
    for name, value in network.state_dict().items():
        if value.is_floating_point():
            value.uniform_(0.5, 2, generator=generator) if name.endswith(
                "var"
            ) else value.normal_(generator=generator)
    return network.double().eval()


def public_rules(network, initial, margins, size):
    """The rules of the public repository, written once more with torch's own fusion and NumPy: raw values, before the scale."""

    def weights(model):
        model = copy.deepcopy(model)
        for place in (0, 3):
            model[place], model[place + 1] = (
                nn.utils.fusion.fuse_conv_bn_eval(model[place], model[place + 1]),
                nn.Identity(),
            )
        return model, [
            value.detach().numpy().copy()
            for name, value in model.named_parameters()
            if "bias" not in name
        ]

    fused, kernels = weights(network)
    moved = [
        kernel - start
        for kernel, start in zip(kernels, weights(initial)[1], strict=True)
    ]
    flat, flat_moved = (
        np.concatenate([kernel.ravel() for kernel in group])
        for group in (kernels, moved)
    )
    gamma = abs(float(torch.tensor(margins).kthvalue(len(margins) // 10).values))
    fro, dist_fro = (
        np.array([(kernel**2).sum() for kernel in group]) for group in (kernels, moved)
    )
    for parameter in fused.parameters():
        parameter.data.pow_(2)
    paths, d = (
        float(fused(torch.ones(1, 3, size, size, dtype=torch.float64)).sum().detach()),
        len(kernels),
    )
    expected = {
        "params": len(flat),
        "inverse_margin": 1 / gamma**2,
        "l2": np.linalg.norm(flat),
        "l2_dist": np.linalg.norm(flat_moved),
        "log_prod_of_fro": np.log(fro).sum(),
        "fro_dist": dist_fro.sum(),
        "param_norm": fro.sum(),
        "path_norm": paths,
        "path_norm_over_margin": paths / gamma**2,
    }
    expected["log_prod_of_fro_over_margin"] = expected["log_prod_of_fro"] - 2 * np.log(
        gamma
    )
    for name in ("log_prod_of_fro", "log_prod_of_fro_over_margin"):
        expected[name.replace("prod", "sum")] = np.log(d) + expected[name] / d
    spec, dist_spec = (
        np.array([np.linalg.norm(k.reshape(len(k), -1), 2) ** 2 for k in group])
        for group in (kernels, moved)
    )
    product = np.log(spec).sum()
    over = product - 2 * np.log(gamma)
    raw = (
        product,
        over,
        over + np.log((dist_fro / spec).sum()),
        over + np.log((fro / spec).sum()),
        (fro / spec).sum(),
    )
    raw += (np.log(d) + over / d, np.log(d) + product / d, dist_spec.sum())
    return expected | {
        f"{name} (reshaped)": value for name, value in zip(SPECTRAL, raw, strict=True)
    }


def evidence_of(network, initial, size=8, images=40):
    """What measures need of a network, without a study around it."""
    known = evidence.Evidence(
        {"network": network, "initial_network": initial, "device": "cpu"},
        evidence.MeasureSettings(),
    )
    margins = np.random.default_rng(3).normal(1, 2, images)
    given = {
        "example": torch.zeros(1, 3, size, size, dtype=torch.float64),
        "margins": margins,
        "training_images": images,
    }
    known |= given | {"margin": abs(float(np.sort(margins)[images // 10 - 1]))}
    return known


def values_of(known, names=NAMES):
    found = {}
    for name in names:
        item = MEASURES[name]
        value = known[name]
        found |= (
            {item.column(variant): number for variant, number in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return found


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("strides", [(1, 1), (1, 2)])
def test_every_measure_agrees_with_the_public_rules(bias, strides):
    network, initial = (small_network(seed, bias, strides) for seed in (0, 1))
    known = evidence_of(network, initial)
    found, m = values_of(known), 40
    for name, raw in public_rules(network, initial, known["margins"], 8).items():
        scaled = (
            0.5 * (raw - math.log(m)) if name.startswith("log_") else math.sqrt(raw / m)
        )
        assert found[name] == pytest.approx(scaled, rel=1e-10), name


def test_path_norm_is_a_sum_over_paths():
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)
    ).double()
    first, offset, second, last = (
        parameter.detach().numpy() ** 2 for parameter in network.parameters()
    )
    expected = sum(
        first[h, i] * second[k, h] for i in range(3) for h in range(4) for k in range(2)
    )
    expected += (
        sum(offset[h] * second[k, h] for h in range(4) for k in range(2)) + last.sum()
    )
    assert norms.path_product(network, torch.zeros(1, 3, 1, 1)) == pytest.approx(
        expected, rel=1e-12
    )


def test_path_norm_leaves_the_network_and_refuses_what_is_no_sum_over_paths():
    network = small_network(0).float()
    before = str(network.state_dict())
    assert norms.path_product(network, torch.zeros(1, 3, 8, 8)) > 0
    assert str(network.state_dict()) == before
    for module in (
        nn.GroupNorm(1, 3),
        nn.InstanceNorm2d(3),
        nn.BatchNorm2d(3, track_running_stats=False),
    ):
        with pytest.raises(ValueError, match="divides by statistics of its input"):
            norms.path_product(
                nn.Sequential(module, nn.Flatten(), nn.Linear(3, 1)),
                torch.zeros(1, 3, 1, 1),
            )


def test_the_spectral_norm_of_du_is_the_unscaled_bound_and_its_logarithm_does_not_overflow():
    known = evidence_of(small_network(0), None)
    found = values_of(known, ["spectral_norm", "log_spec_orig_main"])
    assert found["spectral_norm"] == pytest.approx(
        2 * found["log_spec_orig_main"] + math.log(40)
    )
    assert found["spectral_norm (raw)"] == pytest.approx(
        math.exp(found["spectral_norm"])
    )
    large = norms.Layer(torch.full((1, 1, 1, 1), 1e3, dtype=torch.float64))
    known = evidence_of(None, None)
    known["weights"] = [large] * 2000
    expected = 2000 * 2 * math.log(1e3) + math.log(2000) - 2 * math.log(known["margin"])
    with np.errstate(over="ignore"):
        found = values_of(known, ["spectral_norm"])
    assert found == pytest.approx(
        {"spectral_norm": expected, "spectral_norm (raw)": math.inf}
    )


def test_without_initial_weights_there_is_no_distance_and_all_else(tiny_given):
    measures = [MEASURES[name] for name in NAMES]
    table, _ = evidence.score(
        measures, tiny_given | {"initial_network": None}, evidence.MeasureSettings()
    )
    missing = table[table["value"].isna()]
    assert (len(NAMES), set(missing["measure"])) == (
        21,
        {"l2_dist", "fro_dist", "log_spec_init_main", "dist_spec_init"},
    )
    assert set(missing["reason"]) == {
        "no initial weights were given, so there is no distance from them"
    }
