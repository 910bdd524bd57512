"""Error and Kappa over noise, unseen classes and size (Huang, Yu and Zhang 2025)."""
