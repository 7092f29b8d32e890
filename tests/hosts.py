"""The adapters' tests against hosts that the development environment does not have: `make hosts`, or by name.

    python tests/hosts.py rsl_rl-5.5 brax

Each host goes into a folder of its own in `build/hosts`, in front of the development environment's packages, without
what it would bring along that is there already (PyTorch above all).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LOGGING = ["tensorboard", "absl-py", "grpcio", "markdown", "protobuf", "werkzeug", "tensorboard-data-server"]
RSL_RL = [*LOGGING, "GitPython", "gitdb", "smmap", "onnxscript", "onnx_ir"]
ZOO = ["rl-zoo3==2.9.2", "huggingface_hub", "huggingface_sb3", "wasabi", "shimmy"]
BRAX = ["brax==0.14.2", "jax<0.10", "numpy>=2", "array-api-compat", "safetensors", "pytest", "pytest-xdist"]
BRAX += ["gymnasium", *(x for x in (ROOT / "constraints.txt").read_text().split() if x.startswith("torch=="))]
SEAMS = "test_host_seams.py"


class Host(NamedTuple):
    """A version of a host, what it needs besides the development environment, and the tests of its adapter.

    A host that stands `alone` has an environment of its own instead, with what its packages bring along.
    """

    packages: list[str]
    tests: list[str]
    alone: bool = False


HOSTS = {
    "rsl_rl-5.5": Host(["rsl-rl-lib==5.5.1", *RSL_RL], ["test_rsl_rl.py", SEAMS]),
    "rsl_rl-5.4": Host(["rsl-rl-lib==5.4.2", *RSL_RL], ["test_rsl_rl.py", SEAMS]),
    "rsl_rl-3.1": Host(["rsl-rl-lib==3.1.2", *RSL_RL], ["test_rsl_rl.py", SEAMS]),
    "skrl": Host(["skrl==2.1.1", *LOGGING], ["test_skrl.py", SEAMS]),
    "rl_games": Host(["rl-games==1.6.5", *LOGGING, "setproctitle", "psutil", "watchdog"], ["test_rl_games.py", SEAMS]),
    "rl_zoo3": Host(ZOO, ["test_rl_zoo3.py"]),
    "brax": Host(BRAX, ["test_brax.py", SEAMS], alone=True),
}


def _environment(host: Host, folder: Path) -> str:
    """Install a host where it is not yet, and return the Python that finds it."""
    if host.alone:
        python = str(folder / "bin" / "python")
        if not folder.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *host.packages], check=True)
        return python
    if not folder.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*install, *host.packages], check=True)
    return sys.executable


def main(names: list[str]) -> int:
    """Install and test each; 1 if one failed."""
    failed = []
    for name in names or HOSTS:
        host, folder = HOSTS[name], ROOT / "build" / "hosts" / name
        python = _environment(host, folder)
        paths = [ROOT / "src"] if host.alone else [folder, ROOT / "src"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
        files = [str(ROOT / "tests" / "integrations" / file) for file in host.tests]
        command = [python, "-m", "pytest", "-n", "0", "-W", "ignore", *files]
        print(f"== {name}", flush=True)
        if subprocess.run(command, env=environment, cwd=ROOT).returncode != 0:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all hosts passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
