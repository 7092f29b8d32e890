"""The interface of the authors' package `trust_region_projections`, for code that uses it, without its C++ build.

    from trpl.compat import trust_region_projections
    trust_region_projections.install()

    from trust_region_projections.projections.projection_factory import get_projection_layer
    projection = get_projection_layer(proj_type="kl", mean_bound=0.05, cov_bound=5e-4)
    proj_mean, proj_chol = projection(policy, (mean, chol), (old_mean, old_chol), step)

A policy is a mean `[batch, dim]` and a lower Cholesky factor `[batch, dim, dim]`, also for diagonal covariances, or the
symmetric root of the covariance if the policy object says `is_root`. Of that object only `is_root`, `is_diag` and
`contextual_std` (or `contextual_cov`) are read, if it has them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from importlib import util
from types import ModuleType
from typing import Any, ClassVar

from trpl.compat.projection_utils import (
    NO_SCHEDULE,
    MeanAndChol,
    as_gaussian,
    as_matrix,
    by_parts,
    gaussian_frobenius,
    gaussian_kl,
    gaussian_kl_details,
    gaussian_wasserstein_commutative,
    get_entropy_schedule,
    is_contextual,
)
from trpl.gaussians import Gaussian, entropy, frobenius_parts, kl_parts, wasserstein_parts
from trpl.messages import needs

with needs("torch"):
    import torch
    from torch import Tensor, nn

    from trpl.torch import FrobeniusProjection, KLProjection, WassersteinProjection

PACKAGE = "trust_region_projections"
LAYERS = {"kl": KLProjection, "w2": WassersteinProjection, "frob": FrobeniusProjection}
DISTANCES: dict[str, Callable[..., Any]] = {"kl": kl_parts, "w2": wasserstein_parts, "frob": frobenius_parts}


class BaseProjectionLayer:
    """The identity, and the base of all projections; `proj_type` of the subclasses says which distance is bounded.

    Args:
        proj_type: "kl", "w2", "frob", or "" for none; set by the subclass.
        mean_bound: Bound on the mean part.
        cov_bound: Bound on the covariance part.
        trust_region_coeff: Weight of `get_trust_region_loss`.
        scale_prec: Whether distances are scaled by the old precision; trpl supports only True.
        entropy_schedule: "linear", "exp", or None.
        action_dim: Number of action dimensions, for the schedule; that of the policy by default.
        total_train_steps: Number of steps that the schedule spans.
        target_entropy: The final entropy: per action dimension for "exp", of the whole policy for "linear".
        temperature: Of the exponential schedule.
        entropy_eq: Keep the entropy at the schedule, not only above it.
        entropy_first: Control the entropy before the projection.
        do_regression: Whether `trust_region_regression` does anything.
        regression_iters: The number of epochs of regression.
        regression_lr: Its learning rate.
        dtype: The dtype of the computation; that of the policy by default.
        cpu: Accepted for old configurations; the computation is on the tensors' device.

    Raises:
        ValueError: If an argument is unknown or not supported.
    """

    proj_type = ""
    form: ClassVar[dict[str, Any]] = {}  # further arguments of the layer and of its distance

    def __init__(
        self,
        proj_type: str = "",
        mean_bound: float = 0.03,
        cov_bound: float = 1e-3,
        trust_region_coeff: float = 0.0,
        scale_prec: bool = True,
        entropy_schedule: str | bool | None = None,
        action_dim: int | None = None,
        total_train_steps: int | None = None,
        target_entropy: float = 0.0,
        temperature: float = 0.5,
        entropy_eq: bool = False,
        entropy_first: bool = False,
        do_regression: bool = False,
        regression_iters: int = 1000,
        regression_lr: float = 3e-4,
        dtype: torch.dtype | None = None,
        cpu: bool = True,
        **unknown: Any,
    ) -> None:
        if proj_type and proj_type != self.proj_type:
            raise ValueError(f"{type(self).__name__} projects by {self.proj_type or 'nothing'}, not {proj_type!r}")
        others = unknown.keys() - {"optimizer_type_reg", "device"}
        if others:
            raise ValueError(f"unknown arguments of a projection: {', '.join(sorted(others))}")
        if not self.proj_type and entropy_schedule not in NO_SCHEDULE:
            raise ValueError("without a projection trpl does not control the entropy; drop the entropy_schedule")
        if not scale_prec:
            raise ValueError("scale_prec=False: trpl supports only distances scaled by the old precision")
        get_entropy_schedule(entropy_schedule, total_train_steps or 1, 1)
        self.mean_bound, self.cov_bound, self.trust_region_coeff = mean_bound, cov_bound, trust_region_coeff
        self.entropy_schedule, self.action_dim, self.total_train_steps = entropy_schedule, action_dim, total_train_steps
        self.target_entropy, self.temperature = target_entropy, temperature
        self.entropy_eq, self.entropy_first = entropy_eq, entropy_first
        self.do_regression, self.regression_iters, self.regression_lr = do_regression, regression_iters, regression_lr
        self.dtype = dtype
        self.initial_entropy: Tensor | float | None = None
        self._layer: Any = None
        if self.proj_type:
            self._layer = LAYERS[self.proj_type](mean_bound, cov_bound, entropy_first=entropy_first, **self.form)

    def __call__(self, policy: Any, p: MeanAndChol, q: MeanAndChol, step: int = 0, *args: Any, **kwargs: Any) -> Any:
        """Project the predicted policy into the trust region around the old one.

        Args:
            policy: The policy object, of which only its kind of covariance is read.
            p: The predicted mean and Cholesky factor.
            q: The old mean and Cholesky factor.
            step: The step of the entropy schedule.
            *args: Accepted for old callers.
            **kwargs: Accepted for old callers.

        Returns:
            The projected mean and Cholesky factor.
        """
        if self._layer is None:
            return p
        predicted, old = self._gaussian(policy, p), self._gaussian(policy, q)
        beta = self._entropy_target(policy, q, predicted.dim, step)
        constraint = {} if beta is None else {"entropy" if self.entropy_eq else "min_entropy": beta}
        projected = self._layer(predicted, old, **constraint)
        return projected.mean, as_matrix(policy, projected, p[1])

    def get_trust_region_loss(
        self, policy: Any, p: MeanAndChol, proj_p: MeanAndChol, set_variance: bool = False
    ) -> Tensor:
        """Compute the weighted regression penalty; its gradient flows into `p` only.

        It pulls means and covariances, also a covariance that all states share, on which TCE and TOP-ERL rely. With
        `set_variance` the caller sets the covariance to the projected one, and only the means are pulled. What is not
        pulled has a gradient of zero, not none: BBRL's agent reads the gradient of every parameter of this loss.

        Args:
            policy: The policy object.
            p: The predicted mean and Cholesky factor.
            proj_p: Their projection, treated as a constant.
            set_variance: Whether to leave out the covariance.

        Returns:
            The loss, a number.
        """
        unpulled = 0.0 * (p[0].sum() + p[1].sum())
        if self._layer is None:
            return unpulled
        return self.trust_region_coeff * self._penalty(policy, p, proj_p, set_variance=set_variance) + unpulled

    def trust_region_value(self, policy: Any, p: MeanAndChol, q: MeanAndChol) -> tuple[Tensor, Tensor]:
        """Compute mean and covariance part of the bounded distance, state by state.

        Args:
            policy: The policy object.
            p: The new mean and Cholesky factor.
            q: The old mean and Cholesky factor.

        Returns:
            The two parts.
        """
        distance = DISTANCES[self.proj_type or "kl"]
        return by_parts(distance(self._gaussian(policy, p), self._gaussian(policy, q), **self.form))

    def trust_region_regression(
        self, policy: nn.Module, obs: Tensor, q: MeanAndChol, n_minibatches: int, global_steps: int
    ) -> dict[str, float]:
        """Fit the network to its own initial projection.

        Args:
            policy: The network; `policy(obs)` is mean and Cholesky factor.
            obs: Observations.
            q: The old policy there.
            n_minibatches: Minibatches per epoch.
            global_steps: Step of the entropy schedule.

        Returns:
            The last mean distance under "regression_loss"; empty without `do_regression`.
        """
        if not self.do_regression or self._layer is None:
            return {}
        with torch.no_grad():
            target = self(policy, copy.deepcopy(policy)(obs), q, global_steps)
        optimizer = torch.optim.Adam(policy.parameters(), lr=self.regression_lr)
        loss = torch.zeros(())
        for _ in range(self.regression_iters):
            for rows in torch.randperm(len(obs), device=obs.device).chunk(n_minibatches):
                p, goal = policy(obs[rows]), (target[0][rows], target[1][rows])
                loss = self._penalty(policy, p, goal)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return {"regression_loss": loss.item()}

    @torch.no_grad()
    def compute_metrics(
        self, policy: Any, p: MeanAndChol, q: MeanAndChol, step: int = 0, *args: Any, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Compute the KL, the bounded distance and entropies, as means and maxima over the states.

        Args:
            policy: The policy object.
            p: The new mean and Cholesky factor.
            q: The old mean and Cholesky factor.
            step: Accepted for old callers.
            *args: Accepted for old callers.
            **kwargs: Accepted for old callers.

        Returns:
            The numbers by the names of the authors' package.
        """
        kl = kl_parts(self._gaussian(policy, p), self._gaussian(policy, q))
        mean, cov = self.trust_region_value(policy, p, q)
        entropies = [entropy(self._gaussian(policy, each)) for each in (p, q)]
        return {
            "kl": (kl.mean + kl.cov).mean(),
            "kl_max": (kl.mean + kl.cov).max(),
            "constraint": (mean + cov).mean(),
            "constraint_max": (mean + cov).max(),
            "mean_constraint": mean.mean(),
            "mean_constraint_max": mean.max(),
            "cov_constraint": cov.mean(),
            "cov_constraint_max": cov.max(),
            "entropy": entropies[0].mean(),
            "entropy_max": entropies[0].max(),
            "entropy_diff": (entropies[1] - entropies[0]).mean(),
            "entropy_diff_max": (entropies[1] - entropies[0]).max(),
        }

    def _gaussian(self, policy: Any, p: MeanAndChol) -> Gaussian[Tensor]:
        mean, chol = p if self.dtype is None else (x.to(self.dtype) for x in p)
        return as_gaussian(policy, (mean, chol))

    def _penalty(self, policy: Any, p: MeanAndChol, proj_p: MeanAndChol, *, set_variance: bool = False) -> Tensor:
        """Compute the mean distance to a projection, a constant; with `set_variance` that of the means alone."""
        if set_variance or not is_contextual(policy):  # a layer's penalty pulls no shared covariance
            mean, cov = self.trust_region_value(policy, p, (proj_p[0].detach(), proj_p[1].detach()))
            return (mean if set_variance else mean + cov).mean()
        return self._layer.penalty(self._gaussian(policy, p), self._gaussian(policy, proj_p)).mean()

    def _entropy_target(self, policy: Any, q: MeanAndChol, dim: int, step: int) -> Any:
        schedule = get_entropy_schedule(self.entropy_schedule, self.total_train_steps or 0, self.action_dim or dim)
        if self.initial_entropy is None and self.entropy_schedule not in NO_SCHEDULE:
            self.initial_entropy = float(entropy(self._gaussian(policy, q)).mean())
        return schedule(self.initial_entropy, self.target_entropy, self.temperature, step)


class KLProjectionLayer(BaseProjectionLayer):
    """Reverse KL, diagonal and full."""

    proj_type = "kl"


class WassersteinProjectionLayer(BaseProjectionLayer):
    """Wasserstein-2 in the paper's commuting form, scaled by the old precision."""

    proj_type = "w2"


class WassersteinProjectionLayerNonCommuting(BaseProjectionLayer):
    """Wasserstein-2 without the assumption that covariances commute, scaled by the old precision."""

    proj_type = "w2"
    form: ClassVar[dict[str, Any]] = {"form": "exact"}


class PAPIProjection(BaseProjectionLayer):
    """A name for imports alone: making one raises `ValueError`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("PAPI is no layer here; it is a method of `trpl train`")


class FrobeniusProjectionLayer(BaseProjectionLayer):
    """Frobenius norm of the change of covariance."""

    proj_type = "frob"


def get_projection_layer(proj_type: str | None = "", **kwargs: Any) -> BaseProjectionLayer:
    """Make a projection by its name in old configurations.

    Args:
        proj_type: "kl", "w2", "frob", or "" for none.
        **kwargs: Arguments of `BaseProjectionLayer`.

    Returns:
        The projection.

    Raises:
        ValueError: If the name, or an argument, is unknown or not supported.
    """
    kinds: dict[str, type[BaseProjectionLayer]] = {
        "": BaseProjectionLayer,
        "kl": KLProjectionLayer,
        "w2": WassersteinProjectionLayer,
        "frob": FrobeniusProjectionLayer,
    }
    name = (proj_type or "").lower()
    if name not in kinds:
        hint = "; PAPI is a method of `trpl train`" if name == "papi" else ""
        raise ValueError(f"proj_type must be one of kl, w2, frob or empty, not {proj_type!r}{hint}")
    return kinds[name](**kwargs)


def _modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the modules of the old package that users of its projections import, with their contents."""
    projections = {
        "base_projection_layer": {"BaseProjectionLayer": BaseProjectionLayer},
        "kl_projection_layer": {"KLProjectionLayer": KLProjectionLayer},
        "w2_projection_layer": {"WassersteinProjectionLayer": WassersteinProjectionLayer},
        "w2_projection_layer_non_com": {
            "WassersteinProjectionLayerNonCommuting": WassersteinProjectionLayerNonCommuting
        },
        "papi_projection": {"PAPIProjection": PAPIProjection},
        "frob_projection_layer": {"FrobeniusProjectionLayer": FrobeniusProjectionLayer},
        "projection_factory": {"get_projection_layer": get_projection_layer},
    }
    yield PACKAGE, {}
    yield f"{PACKAGE}.projections", {}
    for name, contents in projections.items():
        yield f"{PACKAGE}.projections.{name}", contents
    yield f"{PACKAGE}.utils", {}
    functions = [gaussian_kl, gaussian_kl_details, gaussian_wasserstein_commutative, gaussian_frobenius]
    yield f"{PACKAGE}.utils.projection_utils", {f.__name__: f for f in (*functions, get_entropy_schedule)}


def install(*, replace: bool = False) -> None:
    """Make `import trust_region_projections…` import from here, in this process.

    Args:
        replace: Even if the real package is installed.

    Raises:
        ImportError: If the real package is installed and `replace` is False.
    """
    present = sys.modules.get(PACKAGE)
    if present is not None and getattr(present, "__trpl__", False):
        return
    if not replace and (present is not None or util.find_spec(PACKAGE) is not None):
        raise ImportError(f"{PACKAGE} itself is installed; install(replace=True) replaces it by trpl's")
    for name, contents in _modules():
        module = ModuleType(name, f"The interface of {name}, served by trpl.")
        module.__dict__.update(contents, __trpl__=True, __path__=[], __file__=__file__)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
