"""The front of Snakemake: a study file checked, its notebooks executed by papermill; only ``plan`` and ``new`` know of networks."""
