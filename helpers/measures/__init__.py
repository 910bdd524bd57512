"""Every measure of generalization of the literature, each a function with a name, a direction and a source; one registry."""

# Importing a family enters its measures; the order here is that of tables.
from helpers.measures import localization, prediction, norms, spectral, pacbayes, sharpness, repository_flatness, perturbation, curves  # noqa: I001
from helpers.measures import batches, clusters
from helpers.measures.evidence import Settings, score, settings_name
from helpers.measures.registry import FAMILIES, MEASURES, Measure, columns, measure, of_families, ranked

__all__ = [
    "FAMILIES",
    "MEASURES",
    "Measure",
    "Settings",
    "batches",
    "clusters",
    "columns",
    "curves",
    "localization",
    "measure",
    "norms",
    "of_families",
    "pacbayes",
    "perturbation",
    "prediction",
    "ranked",
    "repository_flatness",
    "score",
    "settings_name",
    "sharpness",
    "spectral",
]
