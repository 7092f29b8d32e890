"""KL projection of the covariance (paper, section 4.2 and appendix), in the order in which one reads it.

`equation` has the constraint and its root for given eigenvalues, `factor` the projected factor for a given root,
`routes` which of them serves which bounds, `diagonal` and `full` the projection and its pullback.
"""
