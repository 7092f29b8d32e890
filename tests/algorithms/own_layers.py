"""Projections and penalties written again from the paper, for full covariances: PyTorch, float64, bisection.

Diagonal covariances are full ones here. Nothing of the package computes.
"""

import torch
from restatement import Normal, kl


def shrunk(distance, bound):
    """√(ε/d) where d, the square of a length, is above its bound, else 1."""
    outside = distance > bound
    return torch.where(outside, torch.sqrt(bound / torch.where(outside, distance, 1.0)), 1.0)


def symmetric_root(matrix):
    """The symmetric square root by the iteration of Denman and Beavers."""
    root, inverse = matrix, torch.eye(matrix.shape[-1], dtype=matrix.dtype).expand_as(matrix)
    for _ in range(12):
        root, inverse = 0.5 * (root + torch.linalg.inv(inverse)), 0.5 * (inverse + torch.linalg.inv(root))
    return 0.5 * (root + root.mT)


def squared(matrix):
    return (matrix**2).sum((-2, -1))


def seen_from(q, matrix):
    """L_q⁻¹ A L_q⁻ᵀ."""
    half = torch.linalg.solve_triangular(q.chol, matrix, upper=False)
    return torch.linalg.solve_triangular(q.chol, half.mT, upper=False).mT


class Own:
    """A layer: mean and covariance projected apart, and the entropy last, or first."""

    def __init__(self, kind, config):
        self.kind, self.config = kind, config
        self.mean_weight = 0.5 if kind == "kl" else 1.0
        self.entropy_word = "entropy" if config.entropy_equality else "min_entropy"

    def __call__(self, p, q, *, min_entropy=None, entropy=None):
        def scaled(policy):
            gap = (
                torch.zeros(())
                if min_entropy is None and entropy is None
                else (entropy or min_entropy) - policy.entropy()
            )
            gap = gap if entropy is not None else gap.clamp(min=0.0)
            return Normal(policy.mean, policy.chol * torch.exp(gap / policy.dim)[..., None, None])

        if self.config.entropy_first:
            p = scaled(p)
        step = shrunk(self.mean_part(p, q), torch.tensor(self.config.mean_bound, dtype=torch.float64))
        mean = q.mean + step[..., None] * (p.mean - q.mean)
        bound = torch.tensor(self.config.cov_bound, dtype=torch.float64)
        outside = self.cov_part(p, q) > bound
        chol = torch.where(outside[..., None, None], getattr(self, f"{self.kind}_factor")(p, q, bound), p.chol)
        projected = Normal(mean, chol)
        return projected if self.config.entropy_first else scaled(projected)

    def mean_part(self, p, q):
        return self.mean_weight * (q.whitened(p.mean - q.mean) ** 2).sum(-1)

    def cov_part(self, p, q):
        if self.kind == "kl":
            return kl(p, q)[1]
        if self.kind == "frobenius":
            return squared(seen_from(q, p.cov - q.cov) if self.config.whitened else p.cov - q.cov)
        eye = torch.eye(p.dim, dtype=torch.float64)
        if self.config.wasserstein_form == "exact":
            return squared(symmetric_root(seen_from(q, p.cov)) - eye)
        return squared(torch.linalg.inv(symmetric_root(q.cov)) @ symmetric_root(p.cov) - eye)

    def frobenius_factor(self, p, q, bound):
        share = shrunk(self.cov_part(p, q), bound)[..., None, None]
        return torch.linalg.cholesky(q.cov + share * (p.cov - q.cov))

    def w2_factor(self, p, q, bound):
        share = shrunk(self.cov_part(p, q), bound)[..., None, None]
        if self.config.wasserstein_form == "exact":
            eye = torch.eye(p.dim, dtype=torch.float64)
            root = q.chol @ (eye + share * (symmetric_root(seen_from(q, p.cov)) - eye))
        else:
            start = symmetric_root(q.cov)
            root = start + share * (symmetric_root(p.cov) - start)
        return torch.linalg.cholesky(root @ root.mT)

    def kl_factor(self, p, q, bound):
        """Λ̃ = Λ_q + x (Λ_p − Λ_q) with KL(x) = ε: x by bisection, its gradient by the implicit function theorem."""
        precision, old = torch.cholesky_inverse(p.chol), torch.cholesky_inverse(q.chol)
        difference = q.chol.mT @ (precision - old) @ q.chol  # A, in coordinates where the old policy is standard
        a = torch.linalg.eigvalsh(difference.detach())

        def divergence(x):
            u = x[..., None] * a
            return 0.5 * (torch.log1p(u) - u / (1 + u)).sum(-1)

        low, high = torch.zeros_like(a[..., 0]), torch.ones_like(a[..., 0])
        outside = divergence(high) > bound
        for _ in range(60):
            middle = 0.5 * (low + high)
            above = divergence(middle) > bound
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        x = torch.where(outside, 0.5 * (low + high), 1.0)
        u = x[..., None] * a
        slope = torch.where(outside, 0.5 * (a * u / (1 + u) ** 2).sum(-1), 1.0)
        inside = torch.eye(p.dim, dtype=torch.float64) + x[..., None, None] * difference
        value = 0.5 * (torch.logdet(inside) + torch.diagonal(torch.linalg.inv(inside), dim1=-2, dim2=-1).sum(-1))
        x = x - torch.where(outside, (value - value.detach()) / slope, 0.0)
        return torch.linalg.cholesky(torch.linalg.inv(old + x[..., None, None] * (precision - old)))

    def penalty(self, p, projected):
        """The distance to the projection, which is a constant; its mean part alone where one covariance is shared."""
        target = projected.detach()
        found = self.mean_part(p, target)
        return found if p.is_shared else found + self.cov_part(p, target)
