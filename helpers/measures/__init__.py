"""A function per measure, a module per family.

Importing it enters all of them in the list, in the order in which tables name them.
"""

# ruff: noqa: I001, F401  (the order is that of tables)
from helpers.measures import localization
from helpers.measures import prediction
from helpers.measures import norms
from helpers.measures import spectra
from helpers.measures import flatness
from helpers.measures import perturbation
from helpers.measures import unlabelled
from helpers.measures import reliance
