"""Norms and spectra of weights: public rules written once more, matrices tap by tap, by hand."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from helpers.measures import evidence, norms, spectra
from helpers.measures.norms import (
    Layer,
    fused_network,
    layers_of,
    operator_norm,
)
from helpers.measures.registry import MEASURES
from helpers.networks import Undefined, hooks, resnet

SPECTRA = ("spectral_alpha", "spectral_alpha_hat", "stable_rank")
NAMES = [
    name
    for name, item in MEASURES.items()
    if item.family == "norms" and name not in SPECTRA
]


def small_network(seed, bias=True, strides=(1, 2)):
    """Two convolutions with settled normalisations, and two linear layers."""
    generator = torch.Generator().manual_seed(seed)
    first = nn.Conv2d(3, 5, 3, strides[0], 1, bias=bias), nn.BatchNorm2d(5), nn.ReLU()
    second = nn.Conv2d(5, 4, 3, strides[1], 1, bias=bias), nn.BatchNorm2d(4), nn.ReLU()
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6), nn.ReLU()
    network = nn.Sequential(*first, *second, *head, nn.Linear(6, 3))
    for name, value in network.state_dict().items():
        if name.endswith("var"):
            value.uniform_(0.5, 2, generator=generator)
        elif value.is_floating_point():
            value.normal_(generator=generator)
    return network.double().eval()


def fused_kernels(network):
    """The network by torch's own fusion, and its weights."""
    fused = copy.deepcopy(network)
    for place in (0, 3):
        pair = fused[place], fused[place + 1]
        fused[place] = nn.utils.fusion.fuse_conv_bn_eval(*pair)
        fused[place + 1] = nn.Identity()
    named = dict(fused.named_parameters()).items()
    kernels = [value.detach().numpy() for name, value in named if "bias" not in name]
    return fused, [kernel.copy() for kernel in kernels]


def squared_spectral(kernels, network, size):
    """Squared spectral norms: of convolutions as matrices, written tap by tap."""
    sides = (size, size // network[0].stride[0])
    matrices = [
        operator_matrix(kernel, (side, side), module.stride)
        for kernel, side, module in zip(
            kernels, sides, (network[0], network[3]), strict=False
        )
    ]
    norms_of = [np.linalg.norm(matrix, 2) for matrix in (*matrices, *kernels[2:])]
    return np.square(norms_of)


def public_rules(network, initial, margins, size):
    """The rules of the public repository once more: raw values, before the scale."""
    fused, kernels = fused_kernels(network)
    starts = fused_kernels(initial)[1]
    moved = [now - start for now, start in zip(kernels, starts, strict=True)]
    gamma = abs(float(torch.tensor(margins).kthvalue(len(margins) // 10).values))
    fro, dist_fro = (
        np.array([(kernel**2).sum() for kernel in group]) for group in (kernels, moved)
    )
    for parameter in fused.parameters():
        parameter.data.pow_(2)
    ones = torch.ones(1, 3, size, size, dtype=torch.float64)
    paths = float(fused(ones).sum().detach())
    spec = squared_spectral(kernels, network, size)
    over_margin = -2 * np.log(gamma)
    product = np.log(spec).sum()
    logarithms = {"fro": np.log(fro).sum(), "spec": product}
    expected = {
        "params": sum(kernel.size for kernel in kernels),
        "inverse_margin": 1 / gamma**2,
        "l2": fro.sum() ** 0.5,
        "l2_dist": dist_fro.sum() ** 0.5,
        "fro_dist": dist_fro.sum(),
        "param_norm": fro.sum(),
        "path_norm": paths,
        "path_norm_over_margin": paths / gamma**2,
        "log_spec_init_main": product + over_margin + np.log((dist_fro / spec).sum()),
        "log_spec_orig_main": product + over_margin + np.log((fro / spec).sum()),
        "fro_over_spec": (fro / spec).sum(),
        "dist_spec_init": squared_spectral(moved, network, size).sum(),
    }
    d = len(kernels)
    for kind, value in logarithms.items():
        expected[f"log_prod_of_{kind}"] = value
        expected[f"log_prod_of_{kind}_over_margin"] = value + over_margin
        expected[f"log_sum_of_{kind}"] = np.log(d) + value / d
        expected[f"log_sum_of_{kind}_over_margin"] = (
            np.log(d) + (value + over_margin) / d
        )
    return expected


def evidence_of(network, initial, size=8, images=40):
    """What measures need of a network, without a study around it."""
    margins = np.random.default_rng(3).normal(1, 2, images)
    inputs = {
        "network": network,
        "initial_network": initial,
        "example": torch.zeros(1, 3, size, size, dtype=torch.float64),
        "margins": margins,
        "margin": abs(float(np.sort(margins)[images // 10 - 1])),
        "training_images": images,
    }
    return evidence.Evidence(inputs, evidence.MeasureSettings())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
def test_every_measure_agrees_with_the_public_rules(bias, strides):
    network, initial = (small_network(seed, bias, strides) for seed in (0, 1))
    known, m = evidence_of(network, initial), 40
    rules = public_rules(network, initial, known["margins"], 8)
    assert {*rules} == {*NAMES} - {"spectral_norm"}
    for name, raw in rules.items():
        is_logarithm = name.startswith("log_")
        scaled = (raw - math.log(m)) / 2 if is_logarithm else math.sqrt(raw / m)
        assert known[name] == pytest.approx(scaled, rel=1e-10), name


def test_path_norm_is_a_sum_over_paths():
    layers = nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)
    network = nn.Sequential(nn.Flatten(), *layers).double()
    first, offset, second, last = (
        parameter.detach().numpy() ** 2 for parameter in network.parameters()
    )
    expected = last.sum()
    for h, k in np.ndindex(4, 2):
        expected += (first[h].sum() + offset[h]) * second[k, h]
    for _ in range(2):  # the network stays as it is
        found = norms.path_product(network, torch.zeros(1, 3, 1, 1))
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("module", [nn.GroupNorm(1, 3), nn.InstanceNorm2d(3)])
def test_path_norm_refuses_what_is_no_sum_over_paths(module):
    network = nn.Sequential(module, nn.Flatten(), nn.Linear(3, 1))
    with pytest.raises(ValueError, match="is left after batch normalisation"):
        norms.path_product(network, torch.zeros(1, 3, 1, 1))


def test_the_spectral_norm_of_du_is_the_unscaled_bound():
    known = evidence_of(small_network(0), None)
    found = known["spectral_norm"]
    expected = 2 * known["log_spec_orig_main"] + math.log(40)
    assert found == pytest.approx({"log": expected, "raw": math.exp(expected)})


def test_without_initial_weights_there_is_no_distance_and_all_else(tiny_given):
    measures = [MEASURES[name] for name in NAMES]
    inputs = tiny_given | {"initial_network": None}
    table, _ = evidence.score(measures, inputs, evidence.MeasureSettings())
    missing = table[table["value"].isna()]
    distances = {"l2_dist", "fro_dist", "log_spec_init_main", "dist_spec_init"}
    assert {*missing["measure"]} == distances
    assert missing["reason"].str.startswith("no initial weights were given").all()


def random_kernel(*shape, seed=0):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def operator_matrix(weight, size, stride=(1, 1), dilation=(1, 1), groups=1):
    """The convolution as the matrix that it is, written tap by tap: (c_out rows columns, c_in h w), circular."""
    out, per_group, height, width = weight.shape
    rows, columns = size[0] // stride[0], size[1] // stride[1]
    matrix = np.zeros((out, rows, columns, per_group * groups, *size))
    for o, i, a, b in np.ndindex(out, per_group, height, width):
        channel = o // (out // groups) * per_group + i
        for y, x in np.ndindex(rows, columns):
            source = (
                (y * stride[0] + a * dilation[0]) % size[0],
                (x * stride[1] + b * dilation[1]) % size[1],
            )
            matrix[o, y, x, channel, *source] += weight[o, i, a, b]
    return matrix.reshape(out * rows * columns, -1)


@pytest.mark.parametrize(
    ("shape", "size", "stride", "dilation", "groups"),
    [
        ((4, 3, 3, 3), (8, 8), (1, 1), (1, 1), 1),
        ((2, 5, 3, 3), (8, 8), (1, 1), (1, 1), 1),
        ((4, 3, 3, 3), (8, 8), (2, 2), (1, 1), 1),
        ((3, 4, 3, 2), (8, 6), (2, 1), (1, 1), 1),
        ((3, 2, 5, 5), (8, 8), (4, 4), (1, 1), 1),
        ((4, 2, 3, 3), (8, 8), (2, 2), (2, 2), 1),
        ((4, 3, 3, 3), (8, 8), (1, 1), (1, 1), 2),
        ((6, 1, 3, 3), (8, 8), (2, 2), (1, 1), 6),
    ],
)
def test_operator_norm_is_that_of_the_explicit_matrix(
    shape, size, stride, dilation, groups
):
    weight = random_kernel(*shape)
    expected = np.linalg.norm(
        operator_matrix(weight.numpy(), size, stride, dilation, groups), 2
    )
    layer = Layer(weight, stride, dilation, groups, size)
    assert operator_norm(layer) == pytest.approx(expected, rel=1e-10)


def test_by_hand():
    ones = torch.ones(1, 1, 3, 3, dtype=torch.float64)
    assert operator_norm(Layer(ones, input_size=(6, 6))) == pytest.approx(9)
    difference = torch.tensor([[[[1.0, -1.0]]]], dtype=torch.float64)
    assert operator_norm(Layer(difference, input_size=(1, 4))) == pytest.approx(2)
    for value, expected in ((0.0, 0.0), (math.nan, math.nan), (math.inf, math.nan)):
        layer = Layer(torch.full((2, 2, 3, 3), value), input_size=(8, 8))
        assert operator_norm(layer) == pytest.approx(expected, nan_ok=True)


def test_the_size_is_rounded_up_to_the_stride_and_to_the_kernel():
    weight = random_kernel(3, 2, 3, 3)
    for size, rounded in (((7, 5), (8, 6)), ((1, 2), (4, 4))):
        layer = Layer(weight, (2, 2), input_size=size)
        expected = operator_norm(Layer(weight, (2, 2), input_size=rounded))
        assert operator_norm(layer) == pytest.approx(expected, rel=1e-12)


def settle(network):
    """Give every batch normalisation statistics, scale and shift that change something."""
    generator = torch.Generator().manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            if module.affine:
                nn.init.normal_(module.weight, generator=generator)
                nn.init.normal_(module.bias, generator=generator)
    return network.eval()


def chain(*modules):
    """Convolutions, then global pooling and a linear layer."""
    return settle(
        nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    )


def layers(network, size=16):
    return layers_of(network, torch.zeros(1, 3, size, size))


def test_layers_come_as_they_are_called_with_what_they_were_given():
    second = nn.Conv2d(6, 4, 3, dilation=2, groups=2, padding_mode="circular")
    network = chain(nn.Conv2d(3, 6, (3, 5), (2, 1), padding=(1, 2)), nn.ReLU(), second)
    first, second, last = layers(network)
    assert (first.stride, first.input_size) == ((2, 1), (16, 16))
    assert (second.dilation, second.groups, second.input_size) == ((2, 2), 2, (8, 16))
    assert last.input_size == (1, 1)
    for layer, module in zip(
        (first, second, last), (network[0], network[2], network[5]), strict=True
    ):
        assert torch.equal(layer.weight.flatten(), module.weight.double().flatten())


def test_only_a_normalisation_of_the_very_output_is_folded():
    network = chain(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4))
    assert torch.equal(layers(network)[0].weight, network[0].weight.double())


class Matrix(nn.Linear):
    """A matrix that is not the weight of a layer; or what torch.fx cannot trace."""

    decides = False

    def __init__(self):
        super().__init__(3, 2)
        self.matrix = nn.Parameter(torch.ones(2, 7))

    def forward(self, images):
        means = images.mean((2, 3))
        if self.decides and means.sum() < 0:  # it depends on the input
            means = -means
        return (means @ self.weight.T) @ self.matrix


def test_other_matrices_and_networks_that_cannot_be_traced_have_no_norms():
    network = nn.Sequential(Matrix(), nn.Linear(7, 2)).eval()
    with pytest.raises(ValueError, match="only matrices are weights"):
        layers(network)
    network[0].decides = True
    assert fused_network(network) is network
    with pytest.raises(ValueError, match=r"^torch\.fx cannot trace Sequential, so"):
        layers(network)


@pytest.mark.parametrize("architecture", resnet.ARCHITECTURES)
def test_logits_and_maps_of_the_fused_network_are_those_of_the_network(architecture):
    """No normalisation is left, and strided 1x1 convolutions stay sampled."""
    network = settle(
        resnet.build(architecture, 5, stem="strided", width=0.125, seed=0)
    ).double()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    images = images.double()
    fused = fused_network(network)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    kinds = [
        [type(module) is resnet.SampledConvolution for module in one.modules()]
        for one in (fused, network)
    ]
    assert sum(kinds[0]) == sum(kinds[1])
    # Of basic blocks the first downsampling has few channels.
    assert sum(kinds[1]) == (1 if architecture in ("resnet18", "resnet34") else 0)
    layer = hooks.last_maps_layer(fused, images[:1])
    results = hooks.features_and_logits(fused, layer, images)
    expected = hooks.features_and_logits(network, network.layer4, images)
    for ours, own in zip(results, expected, strict=True):
        # Rounding of some hundred layers.
        assert (ours - own).abs().max() < 1e-11 * own.abs().max()
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("exponent", [1.8, 2.5, 4.0])
def test_the_exponent_of_samples_of_a_pareto_law_is_found(exponent):
    """The standard error is (alpha - 1) / sqrt(n), with the whole sample in the tail."""
    values = 3 * (1 + np.random.default_rng(0).pareto(exponent - 1, 3000))
    error = (exponent - 1) / np.sqrt(3000)
    assert abs(spectra.power_law(values) - exponent) < 5 * error


def test_what_lies_below_the_tail_does_not_count():
    random = np.random.default_rng(1)
    tail = 1 + random.pareto(1.5, 2000)
    below = random.uniform(0.2, 1, 1000)
    together = np.concatenate([below, tail])
    assert spectra.power_law(together) == pytest.approx(2.5, abs=0.2)
    again = spectra.power_law(7 * random.permutation(together))
    assert again == pytest.approx(spectra.power_law(together), rel=1e-9)


def test_eigenvalues_of_a_kernel_are_those_of_all_its_pixels():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv2d(6, 6, 3, groups=6))
    network = network.append(nn.Linear(3, 2))
    weight = network[0].weight.detach().double().numpy()
    values = []
    for row, column in np.ndindex(3, 3):
        matrix = weight[:, :, row, column]
        values += (np.linalg.eigvalsh(matrix.T @ matrix) / 2).tolist()
    found = spectra.singular_values(network)
    shapes = {name: values.shape for name, values in found.items()}
    assert shapes == {
        spectra.RECORDED + "0": (1, 9, 4),
        spectra.RECORDED + "2": (1, 2),
    }
    ((exponent, largest),) = spectra.power_laws(found)  # the others are passed over
    record = found | {"correct": np.ones(3)}
    assert spectra.inputs_from_record(record) == {"singular_values": found}
    assert largest == pytest.approx(max(values), rel=1e-6)
    assert exponent == pytest.approx(spectra.power_law(np.array(values)), rel=1e-6)
    laws = np.array([[2.0, 10.0], [4.0, 0.1]])
    assert spectra.spectral_alpha(laws) == 3
    assert spectra.spectral_alpha_hat(laws) == -1


def test_the_stable_rank_by_hand_and_no_spectra_of_small_layers():
    diagonals = torch.tensor([[3.0, 4.0], [0.0, 3.0]])
    layers = [Layer(torch.diag(values)[:, :, None, None]) for values in diagonals]
    value = spectra.stable_rank(layers)
    assert value == pytest.approx(np.log(25 / 16) / 2)
    with pytest.raises(Undefined, match="no layer has a spectrum of 10 values"):
        spectra.power_laws(spectra.singular_values(nn.Linear(3, 2)))
