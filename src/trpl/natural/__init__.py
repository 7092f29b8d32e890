"""Natural parameters: the joint KL projection of every exponential family, by one theorem.

argmin KL(π̃‖π) subject to KL(π̃‖π_old) ≤ ε and H(π̃) ≥ β interpolates natural parameters and warms the result:

    θ̃ = τ (θ_old + s (θ − θ_old)),    s = 1/(1 + η),    τ = (1 + η)/(1 + η + ω),

with the multipliers η of the KL and ω of the entropy. Two numbers per state, whatever the family and however many parts
a product has. `solver` finds them, `pullback` differentiates them, and each family says what it is along the path.
"""
