"""The launcher: notebooks, parameters and processes, and not one word of machine learning (``python -m helpers.sweep``)."""

from helpers import face

FACE = {"first_cell": ["parameters_in_force"]}
__getattr__ = face(__name__, FACE)
