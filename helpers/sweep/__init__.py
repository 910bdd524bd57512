"""The launcher: notebooks, parameters and processes, and not one word of machine learning (``python -m helpers.sweep``)."""
