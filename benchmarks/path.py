"""Measures the whole path: exchange, middleware, proxy. Prints tables of all figures and their targets.

    python benchmarks/path.py [--quick]

u is the time that the smallest useful loop takes per delta in the same run (`streamtool.bench`). Every figure is the
minimum of several rounds, in which the compared parts take turns. The proxy, a bare proxy and the upstream are
processes on loopback.
"""

import argparse
import platform

import exchange
import proxy


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the whole path: exchange, middleware, proxy.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", choices=["exchange", "middleware", "proxy"], help="only this part")
    given = parser.parse_args()
    parts = {"exchange": exchange.exchanges, "middleware": exchange.middlewares, "proxy": proxy.proxies}
    print(f"Python {platform.python_version()}, deltas of 4 characters")
    missed = 0
    for name, part in parts.items():
        if given.only in (None, name):
            missed += sum(table.show() for table in part(2 if given.quick else 7))
    print(f"\n{missed} targets missed" if missed else "\nall targets met")


if __name__ == "__main__":
    main()
