"""Measures, maps and predictions of a study's models, computed once and stored."""
