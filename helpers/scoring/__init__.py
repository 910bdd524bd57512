"""The models of a study, scored and kept: one store for whatever is computed of them."""
