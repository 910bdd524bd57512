import pytest
import torch
import torchvision
import torchvision.transforms.v2.functional as transforms
from torch import nn

from helpers.networks import resnet
from helpers.networks.hooks import captured_output


@pytest.mark.parametrize("architecture", resnet.ARCHITECTURES)
def test_full_width_with_the_imagenet_stem_is_torchvisions(architecture):
    torch.manual_seed(5)
    reference = torchvision.models.get_model(architecture, weights=None, num_classes=20)
    ours = resnet.build(architecture, 20, seed=5)
    assert list(ours.state_dict()) == list(reference.state_dict())
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours.eval()(image), reference.eval()(image))


@pytest.mark.parametrize("architecture", ["resnet18", "resnet50"])
def test_a_last_stage_of_stride_1_doubles_the_side_of_its_map(architecture):
    form = {"stem": "strided", "width": 0.125, "seed": 1}
    one, two = (
        resnet.build(architecture, 4, last_stride=stride, **form) for stride in (1, 2)
    )
    for network, side in ((one, 8), (two, 4)):
        with captured_output(network.layer4) as outputs:
            network(torch.rand(2, 3, 64, 64))
        assert outputs[0].shape[2:] == (side, side)
    assert all(map(torch.equal, one.parameters(), two.parameters()))


def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, two, other = (
        resnet.build("resnet18", 5, width=0.125, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one.conv1.weight, two.conv1.weight)
    assert not torch.equal(one.conv1.weight, other.conv1.weight)


def test_normalise_is_torchvisions():
    image = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    preset = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.transforms()
    expected = transforms.normalize(image / 255, preset.mean, preset.std)
    normalised = resnet.normalise_images(image)  # float32 of values up to 3
    torch.testing.assert_close(normalised, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(
    "options",
    [{"stride": (3, 1)}, {"stride": 2, "bias": False}, {"stride": 2, "groups": 2}],
)
def test_it_is_the_convolution_that_it_stands_for(layout, options):
    plain = nn.Conv2d(6, 10, 1, **options).double().to(memory_format=layout)
    sampled = nn.Conv2d(6, 10, 1, **options).double().to(memory_format=layout)
    sampled.load_state_dict(plain.state_dict())
    assert type(resnet.sample_first(sampled)) is resnet.SampledConvolution
    images = torch.randn(3, 6, 9, 8, dtype=torch.float64).to(memory_format=layout)
    results = []
    for convolution in (plain, sampled):
        inputs = images.clone().requires_grad_(True)
        output = convolution(inputs)
        output.pow(3).sum().backward()
        gradients = [weights.grad for weights in convolution.parameters()]
        results.append([output, inputs.grad, *gradients])
    # Sums of at most 108 products in another order.
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
