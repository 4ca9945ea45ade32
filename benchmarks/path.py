"""Measures the whole path: exchange, middleware, proxy. Prints tables, and beside each figure what it should reach.

    python benchmarks/path.py [--quick]

u is the cost per delta of the smallest useful loop in this run (`streamtool.bench`). Every figure is the least of
several rounds in which what is compared takes turns. The proxy, a bare one and the upstream are processes on loopback.
"""

import argparse
import platform

import exchange
import proxy


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the whole path: exchange, middleware, proxy.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", choices=["exchange", "middleware", "proxy"], help="one part of it")
    given = parser.parse_args()
    parts = {"exchange": exchange.exchanges, "middleware": exchange.middlewares, "proxy": proxy.proxies}
    print(f"Python {platform.python_version()}, deltas of 4 characters")
    missed = 0
    for name, part in parts.items():
        if given.only in (None, name):
            missed += sum(table.show() for table in part(2 if given.quick else 7))
    print(f"\n{missed} targets are missed" if missed else "\nall targets are reached")


if __name__ == "__main__":
    main()
