"""rsl_rl: exact trust regions in place of PPO's clip, by a class name in the configuration.

algorithm:
  class_name: "trpl.integrations.rsl_rl:TRPL"
"""

from trpl.messages import needs

with needs("rsl-rl"):
    from trpl.integrations.rsl_rl.algorithm import TRPL

__all__ = ["TRPL"]
