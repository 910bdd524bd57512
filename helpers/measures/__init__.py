"""Every measure of generalization of the literature, each a function with a name, a direction and a source; one registry."""

from helpers.measures import localization, prediction
from helpers.measures.evidence import Settings, score, settings_name
from helpers.measures.registry import FAMILIES, MEASURES, Measure, columns, measure, of_families, ranked

__all__ = [
    "FAMILIES",
    "MEASURES",
    "Measure",
    "Settings",
    "columns",
    "localization",
    "measure",
    "of_families",
    "prediction",
    "ranked",
    "score",
    "settings_name",
]
