"""Other parsers, adapted to `conformance/run.py`: `conformance.runners.vllm:hermes`, `conformance.runners.mlx:glm47`.

A module provides each of its engine's parsers under the engine's own name for it. `PARSERS` maps each parser to the
format of its cases, `Run` reads one reply, and `VERSION` is the engine's version. `conformance/table.py` compares all
of them.
"""
