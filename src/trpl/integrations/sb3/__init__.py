"""Stable-Baselines3: trust-region layers as an on-policy algorithm like any other.

from trpl.integrations.sb3 import TRPL

model = TRPL("MlpPolicy", "HalfCheetah-v5", projection="kl", mean_bound=0.03, cov_bound=1e-3)
model.learn(1_000_000, progress_bar=True)
"""

from trpl.messages import needs

with needs("sb3"):
    from trpl.integrations.sb3.algorithm import TRPL
    from trpl.integrations.sb3.audit import ExactKL
    from trpl.integrations.sb3.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["TRPL", "CnnPolicy", "ExactKL", "MlpPolicy", "MultiInputPolicy"]
