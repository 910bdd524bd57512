"""Modules of the notebooks: studies, reports, and one folder per subject.

From the ground up: ``data``, ``networks``, ``statistics``, ``training``, ``cams``,
``measures``, ``scores``, ``report``, ``study``; on them ``choices``, ``kappa`` and
``checkpoints``, each for one notebook.

Example:
    >>> from helpers.study import Study
    >>> study = Study.open("kinds20")  # doctest: +SKIP
    >>> study.models[["model_id", "gap"]]  # doctest: +SKIP
"""
