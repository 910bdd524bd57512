"""The picture that opens a study: networks and photographs by rule, masks of the box's area, the numbers of its report."""

import pytest
import torch
from PIL import Image

from helpers.files import PROJECT_ROOT
from helpers.report import opening
from tests.report import made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made.write_report(tmp_path_factory.mktemp("reports") / "made")


def test_a_mask_has_the_area_of_the_box_and_the_highest_pixels():
    maps = torch.tensor([[[0.1, 0.9], [0.5, 0.3]]])
    inside = torch.tensor([[[True, True], [False, False]]])
    mask = opening.area_mask(maps, inside)
    assert mask.tolist() == [[[False, True], [True, False]]]


def test_photographs_are_spread_over_the_differences_and_have_boxes():
    differences = torch.tensor([0.0, 0.7, 0.1, 0.6, 0.2, 0.5, 0.3, 0.4, 9.0])
    inside = torch.ones(9, 1, 1, dtype=torch.bool)
    inside[8] = False
    # In order: 1 3 5 7 6 4 2 0; the second of each quarter.
    assert opening.spread(differences, inside, 4) == [3, 7, 4, 0]


def test_a_report_without_the_corrected_overlap_has_no_picture(folder):
    assert opening.scene_of(folder) is None
    assert not opening.write(folder)
    assert not (folder / opening.WIDE).exists()


@pytest.mark.parametrize("study", ["kinds20", "filled20"])
def test_the_committed_picture_shows_the_tables_of_its_report(study):
    report = PROJECT_ROOT / "reports" / study
    scene = opening.scene_of(report)
    catalogue = opening.published_models(report.parent, study)
    gaps = [look.gap for look in scene.looks]
    assert gaps == [catalogue["gap"].min(), catalogue["gap"].max()]
    for name, width in ((opening.WIDE, 1200), (opening.NARROW, 600)):
        assert opening.source_of(report / name) == opening.digest(scene)
        with Image.open(report / name) as image:
            assert image.width == width
