"""Run llama.cpp's server (from the package xllamacpp) with a model, as a program.

    python tests/engines/model_server.py FILE

Prints the address, and exits at the end of its input. It computes with a single thread, like `llama_server.py`.
"""

import sys

import xllamacpp

CONTEXT = 16384


def main(model: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 4
    params.endpoint_metrics = True
    params.verbosity = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
