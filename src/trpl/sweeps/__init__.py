"""Sweeps: many runs, each done exactly once, on this machine or a cluster."""
