"""The optional module that rl_zoo3 imports before it lists its algorithms: adds TRPL to them.

A `.pth` file of trpl's wheel puts this folder at the end of Python's path. A `custom_envs` of yours is found first.
"""

import sys
from pkgutil import extend_path

__path__ = extend_path([], __name__)  # modules in a folder `custom_envs` without `__init__.py` can still be imported

if "rl_zoo3" in sys.modules:
    from trpl.integrations.rl_zoo3 import register

    register()
