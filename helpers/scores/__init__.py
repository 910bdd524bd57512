"""Scores and arrays of a study's networks: computed once, stored, published."""
