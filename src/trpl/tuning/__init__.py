"""Tuning of a method's settings, with Optuna."""
