"""Trust-region projections of Gaussians: one file each, written once against the array API."""
