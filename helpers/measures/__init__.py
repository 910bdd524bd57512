"""Every measure of generalization of the literature, each a function with a name, a direction and a source; one registry."""

# Importing a family enters its measures; the order here is that of tables.
from helpers.measures import localization, prediction, norms, spectral, flatness, perturbation, unlabelled, reliance  # noqa: I001, F401
