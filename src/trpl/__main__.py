"""`python -m trpl`: the command line."""

import sys

from trpl.cli import main

if __name__ == "__main__":
    sys.argv[0] = "trpl"  # for the command in a run's record
    sys.exit(main())
