"""Reports: figures, tables and sentences of notebooks, and pages of studies.

A study's pages give its findings, executed notebooks and explorers.
"""
