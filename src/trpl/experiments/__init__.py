"""What is run: configurations, presets, runs and their records."""
