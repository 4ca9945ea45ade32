"""Measures the parser: `python benchmarks/parser.py [FILE]`, which is the same as `streamtool bench`."""

import sys

from streamtool.bench import main

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
