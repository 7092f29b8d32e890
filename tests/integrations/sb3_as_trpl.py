"""A pytest plugin that puts TRPL in the place of Stable-Baselines3's PPO, to run the library's own tests against it.

git clone --branch v2.9.2 https://github.com/DLR-RM/stable-baselines3
PYTHONPATH=$PWD/tests/integrations pytest -p sb3_as_trpl --rootdir stable-baselines3 stable-baselines3/tests/test_run.py
"""

import stable_baselines3

from trpl.integrations.sb3 import TRPL

stable_baselines3.PPO = TRPL
