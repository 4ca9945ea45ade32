"""Run the command line as `python -m streamtool`."""

import sys

from streamtool.cli import main

if __name__ == "__main__":
    sys.exit(main())
