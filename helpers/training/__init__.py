"""One run, the grid of runs, and the catalogue of what they left (notebook 02)."""
