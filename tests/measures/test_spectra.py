"""Power laws of spectra: samples of a known law, eigenvalues by hand, scale and order."""

import numpy as np
import pytest
import torch
from torch import nn

from helpers.measures import spectra
from helpers.measures.norms import Layer, frobenius_norms, spectral_norms
from helpers.networks.faults import Undefined

DIAGONALS = [[3.0, 4.0], [0.0, 3.0]]


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
    assert spectra.power_law(7 * random.permutation(together)) == pytest.approx(
        spectra.power_law(together), rel=1e-9
    )


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


def test_the_stable_rank_by_hand():
    layers = [Layer(torch.diag(torch.tensor(d))[:, :, None, None]) for d in DIAGONALS]
    value = spectra.stable_rank(spectral_norms(layers), frobenius_norms(layers))
    assert value == pytest.approx(np.log(25 / 16) / 2)


def test_a_network_of_small_layers_has_no_spectra():
    with pytest.raises(Undefined, match="no layer has a spectrum of 10 values"):
        spectra.power_laws(spectra.singular_values(nn.Linear(3, 2)))
