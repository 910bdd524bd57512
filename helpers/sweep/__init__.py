"""The front of Snakemake: a study file checked, its notebooks executed by papermill.

Only ``plan`` and ``new`` know of networks.
"""
