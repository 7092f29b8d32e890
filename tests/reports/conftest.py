import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for synthetic_runs and chromium, whatever pytest's import mode
