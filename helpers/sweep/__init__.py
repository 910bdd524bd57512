"""Study files, checked, and their notebooks, executed by Snakemake and papermill.

Only ``plan`` and ``new`` build networks.
"""
