"""A thin layer under the notebooks: one room per subject, each knowing only the rooms before it.

In order: ``data``, ``networks``, ``statistics``, ``training``, ``cams``, ``measures``, ``scoring``, ``report``; on them ``ablations``,
``kappa`` and ``select``, each for one notebook; apart from all ``sweep``, which runs notebooks.
"""
