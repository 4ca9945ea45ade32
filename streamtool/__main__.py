"""`python -m streamtool` is the command `streamtool`."""

import sys

from streamtool.cli import main

if __name__ == "__main__":
    sys.exit(main())
