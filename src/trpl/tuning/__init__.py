"""Search for a method's settings, with Optuna."""
