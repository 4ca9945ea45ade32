"""Run llama.cpp's server (from the package xllamacpp) with a model, as a program.

    python tests/engines/model_server.py FILE [CONTEXT [SLOTS]]

Prints the address, and exits at the end of its input.

It computes with a single thread: several would busy-wait for each other and make no progress on a busy machine.
"""

import sys

import xllamacpp

CONTEXT = 16384


def main(model: str, context: int = CONTEXT, slots: int = 1) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = context
    params.n_parallel = slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 8
    params.endpoint_metrics = True
    params.verbosity = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
