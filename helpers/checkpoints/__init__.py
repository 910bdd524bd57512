"""Predict the gap of a user's own networks by the rule of the published studies."""
