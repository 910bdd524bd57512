"""A study of a few classes from its images to its tables and figures, through the functions that notebook 06 calls, in its order."""

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from helpers import kappa, measures
from helpers.data.images import load_study_data

CLASSES = [f"synthetic_{name}" for name in ("disc", "square", "triangle", "cross", "ring", "star", "hourglass", "bars", "frame", "corner")]
NETWORKS = ["resnet18 w0.0625", "resnet34 w0.0625"]
SSIM, FRACTIONS, DRAWS, SEEN = [0.7, 1.0], [0.0, 0.2], 40, 8


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Everything between the images and the tables."""
    folder = tmp_path_factory.mktemp("study")
    sizes = {"image_size": 16, "images_per_class": 8, "test_images_per_class": 6}
    data = load_study_data(data_source="synthetic", class_ids=CLASSES, **sizes, cache_dir=folder)
    kappa.check_asked(NETWORKS, "made", SEEN, len(CLASSES))
    steps = kappa.class_steps(CLASSES, SEEN, FRACTIONS)
    counts = [len(step) for step in steps]
    noise = kappa.noise_levels("blur", SSIM, data, folder, seed=0, device="cpu")
    images = (kappa.of_classes(data.train, SEEN), kappa.of_classes(data.test, SEEN))
    making = {"epochs": 2, "seed": 0, "precision": "float32", "jobs": 1}
    made = pd.DataFrame(kappa.make_missing(NETWORKS, *images, folder / "made", **making))
    settings = measures.MeasureSettings(flatness_images=16, flatness_draws=2, sharpness_images=8, sharpness_steps=1)
    units = kappa.drawn_units(data.test.labels, counts, DRAWS)
    tables, scores, drawn = [], [], {}
    for member in kappa.made_members(made, folder / "made", 16):
        probed = kappa.probe_member(member, data, noise, steps, SEEN, folder, l2=0.01, device="cpu")
        tables.append(probed.classes)
        drawn[member.backbone.name] = kappa.drawn_statistics(probed.predicted, counts, units)
        scores.append(kappa.complexities(member, probed.first, images[0], settings, "cpu", folder))
    cells = kappa.cells(pd.concat(tables, ignore_index=True))
    return made, cells, kappa.spread(cells, kappa.drawn_grid(cells, drawn, counts, SSIM)), pd.concat(scores, ignore_index=True)


def test_every_cell_is_there_and_every_number_of_table_2_has_an_interval_around_it(study):
    made, cells, spread, _ = study
    assert len(cells) == len(NETWORKS) * len(SSIM) * len(FRACTIONS)
    assert cells["error_mean"].between(0, 1).all()
    assert set(made["model"]) == set(cells["model"]) == set(NETWORKS)
    point = kappa.trade_off_point(kappa.fit_surface(cells))
    table = kappa.beside_table2({"resnet": point}, {"resnet": spread}, SEEN)
    assert np.isfinite(table[["value", "low", "high"]]).all(axis=None)
    assert (table["low"] <= table["high"]).all()
    low, high = SSIM[0], SSIM[-1]
    assert spread.points["ssim"].between(low, high).all()
    marginals = kappa.marginals(cells).merge(spread.marginals, on=["axis", "level"])
    assert len(marginals) == 6
    assert marginals["error_mean"].between(marginals["error_mean_low"], marginals["error_mean_high"]).all()


def test_table_3_has_norms_flatness_and_pac_bayes_for_every_network(study):
    _, cells, _, scores = study
    listing = measures.columns()
    wanted = set(listing.loc[listing["family"].isin(kappa.COMPLEXITY_FAMILIES) & (listing["direction"] != 0), "measure"])
    wanted -= {"repository_pacbayes"}  # computed for comparison with the public code alone
    assert {"pacbayes_init", "pacbayes_orig", "pacbayes_flatness", "pacbayes_mag_flatness", "path_norm", "params"} <= wanted
    complexities = kappa.as_complexity(scores)
    assert set(complexities.columns) == wanted and set(complexities.index) == set(NETWORKS)
    assert complexities["pacbayes_mag_init"].notna().all() and complexities["fro_dist"].notna().all()
    table = kappa.beside_table3({"resnet": kappa.slice_sign_errors(complexities, cells, resamples=20)})
    assert set(table["measure"]) == wanted
    assert table.loc[table["measure"] == "param_norm", "published_p_imagenet"].notna().all()


def test_every_figure_of_the_paper_is_drawn(study, tmp_path):
    _, cells, spread, scores = study
    point = kappa.trade_off_point(kappa.fit_surface(cells))
    ends = kappa.beside_table2({"resnet": point}, {"resnet": spread}, SEEN).set_index("quantity")
    marginals = kappa.marginals(cells).merge(spread.marginals, on=["axis", "level"])
    errors = kappa.slice_sign_errors(kappa.as_complexity(scores), cells, resamples=20)
    with matplotlib.rc_context({"backend": "agg"}):
        figures = [kappa.marginal_curves(marginals, spread.fits, point, ends), kappa.heat_maps(cells, "divergence")]
        figures += [kappa.sign_error_figure(errors, cells, {})]
        for number, figure in enumerate(figures):
            figure.savefig(tmp_path / f"{number}.png")
            assert len([ax for ax in figure.axes if ax.get_visible()]) >= 3
        plt.close("all")
