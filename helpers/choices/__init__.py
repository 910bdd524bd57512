"""Does the correlation survive other choices? Scores of each, and their tables."""
