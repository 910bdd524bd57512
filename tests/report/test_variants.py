"""The numbers by which a report and its variants are compared."""

import pandas as pd

from helpers.report.variants import primary_numbers

RANKED = pd.DataFrame(
    {"title": ["training loss", "IoU", "nuclear norm"], "baseline": [True, False, False], "p_adjusted": [0.01, 0.04, 0.9]}
)


def test_a_report_is_compared_by_its_overlaps_its_gap_and_the_largest_r_with_its_adjusted_p(tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    assert primary_numbers([tmp_path]) == {}
    rows = {"architecture": "Total", "measure": "iou", "threshold": [0.9, 0.8], "n": [9, 12], "pearson_r": [0.1, -0.5]}
    pd.DataFrame(rows).assign(ci_low=-0.81, ci_high=[0.2, None]).to_csv(tables / "table3_iou.csv", index=False)
    pd.DataFrame({"gap": [0.1, 0.2, 0.9], "left_out": ["", "", "diverged"]}).to_csv(tables / "catalogue.csv", index=False)
    RANKED.assign(r_gap=[0.95, -0.5, 0.3]).to_csv(tables / "measures_ranking.csv", index=False)
    found = primary_numbers([tmp_path / "none", tmp_path])
    assert found == {
        "r(IoU, gap)": "-0.50 (-0.81 to —; n = 12)",
        "mean gap": "15.0 points (2 models)",
        "largest |r|": "IoU (-0.50, adjusted p 0.04)",
    }
    RANKED.assign(r_gap=0.5, p_adjusted=None).to_csv(tables / "measures_ranking.csv", index=False)
    assert "largest |r|" not in primary_numbers([tmp_path])
