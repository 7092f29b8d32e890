"""The site, built strictly. Not with --quiet: MkDocs then drops its warnings before --strict can count them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import ROOT


def build_site(out: Path) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return out
