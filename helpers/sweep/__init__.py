"""The front of Snakemake: a study file checked, its notebooks executed by papermill, not one word of machine learning."""
