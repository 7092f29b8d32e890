"""Trust-region projections of Gaussians, one file per region, written against the array API."""
