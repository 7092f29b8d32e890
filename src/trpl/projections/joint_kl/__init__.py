"""Joint KL projection of Gaussians: mean, covariance and entropy at once (paper, appendix "KL-Divergence Projection").

    min KL(π̃‖π)  subject to  KL(π̃‖π_old) ≤ ε  and  H(π̃) ≥ β (or = β).

`terms` computes the solution at a given multiplier, `solution` finds the multiplier, `gradient` is the pullback.
"""
