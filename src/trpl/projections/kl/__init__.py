"""KL projection of the covariance (paper, section 4.2 and appendix).

In reading order: `equation` has the constraint and its root for given eigenvalues, `factor` the projected factor for a
given root, `routes` selects a solver by the bound, `diagonal` and `full` are the projection and its pullback.
"""
