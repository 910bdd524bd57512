"""Numbers about a table of models, and the claims on them."""
