"""Which restatement is which method's."""

import own_baselines
import restatement
from own_layers import Own


def learner(settings, policy, value, **start):
    """The restatement of a method, with these weights."""
    passes = [settings.value_epochs, settings.get("policy_epochs"), settings.get("regression_epochs")]
    improve = {"ppo": restatement.clipped, "ppo-m": restatement.clipped} | vars(own_baselines)
    kind = settings.method.removesuffix("-e")
    method = restatement.through(Own(kind, settings)) if settings.get("regression") else improve[kind]
    return restatement.Restated(settings, policy, value, method, passes=[n for n in passes if n], **start)
