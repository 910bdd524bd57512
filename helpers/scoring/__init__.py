"""The models of a study, scored: one store for whatever is computed of them."""
