"""Every measure of generalization of the literature, each a function with a name, a direction and a source; one registry."""

# Importing a family enters its measures; the order here is that of tables.
from helpers.measures import localization, prediction, norms, spectral, sharpness, pacbayes, perturbation, transforms, unlabelled, passes  # noqa: I001
from helpers.measures import reliance
from helpers.measures.evidence import MeasureSettings, images_read, score, settings_name
from helpers.measures.registry import FAMILIES, MEASURES, Measure, columns, measure, of_families, ranked

__all__ = [
    "FAMILIES",
    "MEASURES",
    "Measure",
    "MeasureSettings",
    "columns",
    "images_read",
    "localization",
    "measure",
    "norms",
    "of_families",
    "pacbayes",
    "passes",
    "perturbation",
    "prediction",
    "ranked",
    "reliance",
    "score",
    "settings_name",
    "sharpness",
    "spectral",
    "transforms",
    "unlabelled",
]
