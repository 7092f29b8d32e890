"""A pytest plugin that trains Brax's PPO through a trust region, to run Brax's own tests with it.

PYTHONPATH=$PWD/src:$PWD/tests/integrations pytest -c /dev/null -p brax_as_trpl <brax>/training/agents/ppo/train_test.py
"""

from trpl.integrations.brax import trust_region

trust_region().__enter__()
