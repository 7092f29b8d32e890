"""A pytest plugin that puts TRPL in the place of rsl_rl's PPO, to run rsl_rl's own tests against it.

git clone --branch v5.4.2 https://github.com/leggedrobotics/rsl_rl
PYTHONPATH=$PWD/tests/integrations pytest -p rsl_rl_as_trpl --rootdir rsl_rl rsl_rl/tests
"""

import rsl_rl.algorithms
import rsl_rl.algorithms.ppo

from trpl.integrations.rsl_rl import TRPL

rsl_rl.algorithms.PPO = rsl_rl.algorithms.ppo.PPO = TRPL
