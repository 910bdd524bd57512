import torch
from torchvision.transforms.v2 import functional as reference

from helpers.training.augmentation import augment, draw


def images(count=6, size=8):
    return torch.randint(
        0,
        256,
        (count, 3, size, size),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )


def test_each_image_equals_its_own_single_transform():
    pixels, draws = images(), draw(6, torch.Generator().manual_seed(3))
    result = augment(pixels, draws)
    for n, image in enumerate(pixels):
        expected = reference.horizontal_flip(image) if draws.horizontal[n] else image
        expected = reference.vertical_flip(expected) if draws.vertical[n] else expected
        expected = ((expected.float() + draws.brightness[n]) * draws.contrast[n]).clamp(
            0, 255
        )[draws.channels[n]]
        assert torch.equal(result[n], expected)


def test_draws_differ_between_images_and_occur_half_of_the_time():
    draws = draw(4000, torch.Generator().manual_seed(1))
    drawn = draws.horizontal, draws.vertical, draws.brightness != 0, draws.contrast != 1
    share = torch.stack([which.float().mean() for which in drawn])
    # Four standard errors of a share of one half among 4000.
    assert (share - 0.5).abs().max() < 4 * 0.5 / 4000**0.5
    moved = (draws.channels != torch.arange(3)).any(1).float().mean()
    assert (
        abs(moved - 0.5 * 5 / 6) < 4 * 0.5 / 4000**0.5
    )  # one permutation of six is the identity
    # Of some 2,000 uniform draws the outermost 2 % are missed once in 10^17 times.
    for values, low, high in ((draws.brightness, -32, 32), (draws.contrast, 0.5, 1.5)):
        margin = 0.02 * (high - low)
        assert low <= values.min() < low + margin
        assert high - margin < values.max() <= high
    assert torch.equal(draws.channels.sort(1).values, torch.arange(3).expand(4000, 3))


def test_the_same_generator_state_gives_the_same_draws_and_channels_are_last():
    first, second = (draw(5, torch.Generator().manual_seed(7)) for _ in range(2))
    assert all(
        torch.equal(one, other) for one, other in zip(first, second, strict=True)
    )
    assert augment(images(5), first).is_contiguous(memory_format=torch.channels_last)
