"""Norms and spectra of weights: public rules written once more, matrices tap by tap, by hand."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from helpers.measures import evidence, norms, spectra
from helpers.measures.norms import Layer, fused_network, layers_of, operator_norm
from helpers.measures.registry import MEASURES, measures_of_families
from helpers.networks import Undefined, hooks, resnet

SIZE, IMAGES = 8, 40
NAMES = [
    item.name
    for item in measures_of_families(["norms"])
    if item.function.__module__ == norms.__name__
]


def settle(network, seed=1):
    """Give every batch normalisation statistics, scale and shift that change something."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            if module.affine:
                nn.init.normal_(module.weight, generator=generator)
                nn.init.normal_(module.bias, generator=generator)
    return network.double().eval()


def small_network(seed, bias=True, strides=(1, 2)):
    """Two convolutions with settled normalisations, and two linear layers."""
    torch.manual_seed(seed)
    first = nn.Conv2d(3, 5, 3, strides[0], 1, bias=bias), nn.BatchNorm2d(5), nn.ReLU()
    second = nn.Conv2d(5, 4, 3, strides[1], 1, bias=bias), nn.BatchNorm2d(4), nn.ReLU()
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6), nn.ReLU()
    return settle(nn.Sequential(*first, *second, *head, nn.Linear(6, 3)), seed)


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


def explicit_norm(layer):
    """Of the convolution as the matrix that it is, circular, written tap by tap."""
    out, per_group, height, width = layer.weight.shape
    size, stride, dilation = layer.input_size, layer.stride, layer.dilation
    rows, columns = size[0] // stride[0], size[1] // stride[1]
    matrix = np.zeros((out, rows, columns, per_group * layer.groups, *size))
    for o, i, a, b in np.ndindex(out, per_group, height, width):
        channel = o // (out // layer.groups) * per_group + i
        for y, x in np.ndindex(rows, columns):
            row = (y * stride[0] + a * dilation[0]) % size[0]
            column = (x * stride[1] + b * dilation[1]) % size[1]
            matrix[o, y, x, channel, row, column] += layer.weight[o, i, a, b]
    return np.linalg.norm(matrix.reshape(out * rows * columns, -1), 2)


def squared_spectral(kernels, network):
    first, second = (network[place].stride for place in (0, 3))
    layers = (
        Layer(kernels[0], first, input_size=(SIZE, SIZE)),
        Layer(kernels[1], second, input_size=(SIZE // first[0],) * 2),
    )
    of_matrices = [np.linalg.norm(kernel, 2) for kernel in kernels[2:]]
    return np.square([*map(explicit_norm, layers), *of_matrices])


def public_rules(network, initial, margins):
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
    ones = torch.ones(1, 3, SIZE, SIZE, dtype=torch.float64)
    paths = float(fused(ones).sum().detach())
    spec = squared_spectral(kernels, network)
    over_margin = -2 * np.log(gamma)
    product = np.log(spec).sum()
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
        "dist_spec_init": squared_spectral(moved, network).sum(),
    }
    logarithms = (("fro", np.log(fro).sum()), ("spec", product))
    endings = (("", 0), ("_over_margin", over_margin))
    for (kind, value), (ending, less) in itertools.product(logarithms, endings):
        mean = (value + less) / len(kernels)
        expected[f"log_prod_of_{kind}{ending}"] = value + less
        expected[f"log_sum_of_{kind}{ending}"] = np.log(len(kernels)) + mean
    return expected


def evidence_of(network, initial):
    """What measures need of a network, without a study around it."""
    margins = np.random.default_rng(3).normal(1, 2, IMAGES)
    inputs = {
        "network": network,
        "initial_network": initial,
        "example": torch.zeros(1, 3, SIZE, SIZE, dtype=torch.float64),
        "margins": margins,
        "margin": abs(np.sort(margins)[IMAGES // 10 - 1]),
        "training_images": IMAGES,
    }
    return evidence.Evidence(inputs, evidence.MeasureSettings())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
def test_every_measure_agrees_with_the_public_rules(bias, strides):
    network, initial = (small_network(seed, bias, strides) for seed in (0, 1))
    known = evidence_of(network, initial)
    rules = public_rules(network, initial, known["margins"])
    assert {*rules} == {*NAMES} - {"spectral_norm"}
    for name, raw in rules.items():
        is_logarithm, of_one = name.startswith("log_"), raw / IMAGES
        scaled = (raw - math.log(IMAGES)) / 2 if is_logarithm else math.sqrt(of_one)
        assert known[name] == pytest.approx(scaled, rel=1e-10), name
    of_du = rules["log_spec_orig_main"]
    expected = {"log": of_du, "raw": math.exp(of_du)}
    assert known["spectral_norm"] == pytest.approx(expected, rel=1e-10)


def test_path_norm_is_a_sum_over_paths():
    layers = nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)
    network = nn.Sequential(nn.Flatten(), *layers).double()
    first, offset, second, last = (
        parameter.detach().numpy() ** 2 for parameter in network.parameters()
    )
    expected = last.sum() + (second @ (first.sum(1) + offset)).sum()
    for _ in range(2):  # the network stays as it is
        found = norms.path_product(network, torch.zeros(1, 3, 1, 1))
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("module", [nn.GroupNorm(1, 3), nn.InstanceNorm2d(3)])
def test_path_norm_refuses_what_is_no_sum_over_paths(module):
    network = nn.Sequential(module, nn.Flatten(), nn.Linear(3, 1))
    with pytest.raises(ValueError, match="is left after batch normalisation"):
        norms.path_product(network, torch.zeros(1, 3, 1, 1))


def test_without_initial_weights_there_is_no_distance_and_all_else(tiny_given):
    measures = [MEASURES[name] for name in NAMES]
    inputs = tiny_given | {"initial_network": None}
    table, _ = evidence.score(measures, inputs, evidence.MeasureSettings())
    missing = table[table["value"].isna()]
    distances = {"l2_dist", "fro_dist", "log_spec_init_main", "dist_spec_init"}
    assert {*missing["measure"]} == distances
    assert missing["reason"].str.startswith("no initial weights were given").all()


def random_kernel(*shape):
    return torch.from_numpy(np.random.default_rng(0).normal(size=shape))


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((4, 3, 3, 3), ((1, 1), (1, 1), 1, (8, 8))),
        ((2, 5, 3, 3), ((1, 1), (1, 1), 1, (8, 8))),
        ((4, 3, 3, 3), ((2, 2), (1, 1), 1, (8, 8))),
        ((3, 4, 3, 2), ((2, 1), (1, 1), 1, (8, 6))),
        ((3, 2, 5, 5), ((4, 4), (1, 1), 1, (8, 8))),
        ((4, 2, 3, 3), ((2, 2), (2, 2), 1, (8, 8))),
        ((4, 3, 3, 3), ((1, 1), (1, 1), 2, (8, 8))),
        ((6, 1, 3, 3), ((2, 2), (1, 1), 6, (8, 8))),
    ],
)
def test_operator_norm_is_that_of_the_explicit_matrix(shape, settings):
    layer = Layer(random_kernel(*shape), *settings)
    assert operator_norm(layer) == pytest.approx(explicit_norm(layer), rel=1e-10)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.0, 18), (0.0, 0), (math.nan, math.nan), (math.inf, math.nan)],
)
def test_the_operator_norm_of_constant_kernels(value, expected):
    layer = Layer(torch.full((2, 2, 3, 3), value), input_size=(8, 8))
    assert operator_norm(layer) == pytest.approx(expected, nan_ok=True)


def test_the_size_is_rounded_up_to_the_stride_and_to_the_kernel():
    weight = random_kernel(3, 2, 3, 3)
    sizes = (((7, 5), (8, 6), 1), ((1, 2), (4, 4), 1), ((1, 2), (6, 6), 2))
    for size, rounded, dilation in sizes:
        layer = Layer(weight, (2, 2), (dilation, dilation), input_size=size)
        expected = operator_norm(layer._replace(input_size=rounded))
        assert operator_norm(layer) == pytest.approx(expected, rel=1e-12)


def chain(*modules):
    """Convolutions, then global pooling and a linear layer."""
    return settle(
        nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    )


def layers(network):
    return layers_of(network, torch.zeros(1, 3, 16, 16))


def test_layers_come_as_they_are_called_with_what_they_were_given():
    second = nn.Conv2d(6, 4, 3, dilation=2, groups=2, padding_mode="circular")
    network = chain(nn.Conv2d(3, 6, (3, 5), (2, 1), padding=(1, 2)), nn.ReLU(), second)
    first, second, last = layers(network)
    assert (first.stride, first.input_size) == ((2, 1), (16, 16))
    assert (second.dilation, second.groups, second.input_size) == ((2, 2), 2, (8, 16))
    assert last.input_size == (1, 1)
    for layer, place in ((first, 0), (second, 2), (last, 5)):
        assert torch.equal(layer.weight.flatten(), network[place].weight.flatten())


def test_only_a_normalisation_of_the_very_output_is_folded():
    network = chain(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4))
    assert torch.equal(layers(network)[0].weight, network[0].weight)


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
    network = settle(resnet.build(architecture, 5, stem="strided", width=0.125, seed=0))
    before = copy.deepcopy(network.state_dict())
    images = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 3, 32, 32)))
    fused = fused_network(network)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    # Of basic blocks the first downsampling has few channels.
    sampled = architecture in ("resnet18", "resnet34")
    for one in (fused, network):
        kinds = [*map(type, one.modules())]
        assert kinds.count(resnet.SampledConvolution) == sampled
    layer = hooks.last_maps_layer(fused, images[:1])
    results = hooks.features_and_logits(fused, layer, images)
    expected = hooks.features_and_logits(network, network.layer4, images)
    for ours, own in zip(results, expected, strict=True):
        # Rounding of some hundred layers.
        assert (ours - own).abs().max() < 1e-11 * own.abs().max()
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("exponent", [1.8, 2.5, 4.0])
def test_the_exponent_of_samples_of_a_pareto_law_is_found(exponent):
    """The standard error is (alpha - 1) / sqrt(n), with the whole sample in the tail."""
    values = 3 * (1 + np.random.default_rng(0).pareto(exponent - 1, 3000))
    error = (exponent - 1) / np.sqrt(3000)
    assert abs(spectra.power_law(values) - exponent) < 5 * error


def test_what_lies_below_the_tail_does_not_count():
    random = np.random.default_rng(1)
    together = np.r_[random.uniform(0.2, 1, 1000), 1 + random.pareto(1.5, 2000)]
    assert spectra.power_law(together) == pytest.approx(2.5, abs=0.2)
    again = spectra.power_law(7 * random.permutation(together))
    assert again == pytest.approx(spectra.power_law(together), rel=1e-9)


def test_eigenvalues_of_a_kernel_are_those_of_all_its_pixels():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv2d(6, 6, 3, groups=6))
    network = network.append(nn.Linear(3, 2))
    matrices = network[0].weight.detach().double().numpy().transpose(2, 3, 0, 1)
    values = np.linalg.eigvalsh(matrices.swapaxes(2, 3) @ matrices).ravel() / 2
    found = spectra.singular_values(network)
    shapes = {name.split()[-1]: values.shape for name, values in found.items()}
    assert shapes == {"0": (1, 9, 4), "2": (1, 2)}
    ((exponent, largest),) = spectra.power_laws(found)  # the others are passed over
    record = found | {"correct": np.ones(3)}
    assert spectra.inputs_from_record(record) == {"singular_values": found}
    assert largest == pytest.approx(max(values), rel=1e-6)
    assert exponent == pytest.approx(spectra.power_law(values), rel=1e-6)
    laws = np.array([[2.0, 10.0], [4.0, 0.1]])
    assert spectra.spectral_alpha(laws) == 3
    assert spectra.spectral_alpha_hat(laws) == -1


def test_the_stable_rank_by_hand_and_no_spectra_of_small_layers():
    diagonals = torch.tensor([[3.0, 4.0], [0.0, 3.0]])
    layers = [Layer(torch.diag(values)[:, :, None, None]) for values in diagonals]
    assert spectra.stable_rank(layers) == pytest.approx(np.log(25 / 16) / 2)
    with pytest.raises(Undefined, match="no layer has a spectrum of 10 values"):
        spectra.power_laws(spectra.singular_values(nn.Linear(3, 2)))
