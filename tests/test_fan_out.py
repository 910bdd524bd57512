"""A sweep block becomes parts with readable, different names; equal shards leave nothing out."""

import pytest

from helpers.fan_out import parts
from helpers.shards import shard_slice

TYPES = {"architectures": "list[str]", "seed": "int", "pretrained_levels": "list[bool]", "rate": "float", "stem": "str", "shard": "str"}


def test_every_combination_is_a_part_and_a_list_takes_single_values():
    found, faults = parts("here", {"architectures": ["resnet18", ["resnet34", "resnet50"]], "seed": [0, 1]}, TYPES)
    assert faults == []
    assert found == {
        "resnet18-seed0": {"architectures": ["resnet18"], "seed": 0},
        "resnet18-seed1": {"architectures": ["resnet18"], "seed": 1},
        "resnet34+resnet50-seed0": {"architectures": ["resnet34", "resnet50"], "seed": 0},
        "resnet34+resnet50-seed1": {"architectures": ["resnet34", "resnet50"], "seed": 1},
    }
    assert list(parts("here", {"pretrained_levels": [True, False], "rate": [1e-5]}, TYPES)[0]) == [
        "pretrained_levelstrue-rate1e-05",
        "pretrained_levelsfalse-rate1e-05",
    ]


def test_a_number_of_shards_makes_as_many_parts():
    found, _ = parts("here", {"shard": 11}, TYPES)
    assert list(found.values()) == [{"shard": f"{number}/11"} for number in range(1, 12)]
    assert list(found) == sorted(found)
    assert next(iter(found)) == "shard01of11"


def test_names_are_plain_file_names_and_never_the_same():
    found, _ = parts("here", {"stem": ["a/b", "a:b", "..", "x" * 300, "x" * 301]}, TYPES)
    assert len(found) == 5
    assert all(len(name) < 100 and "/" not in name and not name.startswith(".") for name in found)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"architecture": ["a"]}, "here: unknown parameter 'architecture' (did you mean 'architectures'?)"),
        ({"seed": 3}, "here: seed is 3, and must be a list of the values to run"),
        ({"seed": []}, "must be a list of the values"),
        ({"seed": [1, 2, 1]}, "here: seed has a value twice: [1, 2, 1]"),
        ({"shard": 0}, "here: shard is 0, and must be a whole number of parts, at least 1"),
        ({"shard": True}, "must be a whole number"),
        ({"shard": [1]}, "must be a whole number"),
        ([], "here: this block is []; it must map parameters to lists of values"),
    ],
)
def test_faults_say_what_is_wrong_and_what_would_be_valid(block, message):
    found, (fault,) = parts("here", block, TYPES)
    assert found == {}
    assert message in fault


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
def test_shards_are_disjoint_complete_and_as_equal_as_can_be(count):
    runs = list(range(10))
    shares = [runs[shard_slice(f"{number}/{count}")] for number in range(1, count + 1)]
    assert sorted(run for share in shares for run in share) == runs
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_no_shard_is_everything_and_a_wrong_one_is_refused():
    assert [1, 2][shard_slice("")] == [1, 2]
    for wrong in ("0/2", "3/2", "1", "a/b", "1/2/3", "-1/2"):
        with pytest.raises(ValueError, match=f"the shard is '{wrong}'; write i/n with i from 1 to n"):
            shard_slice(wrong)
