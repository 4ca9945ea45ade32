"""Other parsers as `conformance/run.py` wants them: `conformance.runners.vllm:hermes`, `conformance.runners.mlx:glm47`.

A module offers each parser of its engine by its name there. `PARSERS` says for which format of the cases each is meant,
`Run` reads one reply, `VERSION` is the engine's. `conformance/table.py` sets all of them side by side.
"""
