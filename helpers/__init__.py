"""Modules of the notebooks: studies, reports, and one folder per subject.

From the ground up: ``data``, ``networks``, ``statistics``, ``training``, ``cams``,
``measures``, ``scoring``, ``report``, ``study``; on them ``ablations``, ``kappa`` and
``checkpoints``, each for one notebook.

Example:
    >>> from helpers.study import Study
    >>> study = Study.open("kinds20")  # doctest: +SKIP
    >>> study.models[["model_id", "gap"]]  # doctest: +SKIP
"""
