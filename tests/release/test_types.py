"""Type checkers know the type of every public name of the wheel."""

import json
import re
import sys
from pathlib import Path

import pytest
from support.installing import UV, build, run
from support.servers import ROOT

from tools.public_surface import homes

pytestmark = pytest.mark.release

INTERNAL = {
    *(f"middleware.ToolMiddleware.{name}" for name in ("observers", "templates", "services", "background")),
    *(f"middleware.ToolMiddleware.{name}" for name in ("stored", "gate", "sockets")),
    *("observe.otel.OpenTelemetry.messages", "policy.evidence.EndOfReply.rules"),
}
"""Attributes that are public only to other modules of ours; their types have members without annotations."""
WITH_INTERNAL = {"agent.agent.Agent", *(name.rpartition(".")[0] for name in INTERNAL)}


def test_the_types_of_public_names_are_complete(tmp_path: Path) -> None:
    wheel = build(ROOT, tmp_path / "dist", "--wheel")
    extras = "serve,chat,mcp,batch,metrics,otel,tokenizer,redis,langchain"
    run(*UV, "venv", "-q", "--python", sys.executable, tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    run(*UV, "pip", "install", "-q", "--python", python, f"{wheel}[{extras}]", cwd=tmp_path)
    path = f"{python.parent}:/usr/local/bin:/usr/bin:/bin"
    places = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    run(*UV, "tool", "install", "-q", "pyright[nodejs]", cwd=tmp_path, **places)
    pyright = (tmp_path / "bin" / "pyright", "--ignoreexternal", "--outputjson")
    public, total, unknown = homes(), 0, set()
    for package in ("streamtool", "statemachine"):
        out = run(
            *pyright, "--verifytypes", package, cwd=tmp_path, code=1, PATH=path, VIRTUAL_ENV=str(python.parents[1])
        )
        for symbol in json.JSONDecoder().raw_decode(out[out.index("{") :])[0]["typeCompleteness"]["symbols"]:
            places = re.split(r"\.", symbol["name"])
            starts = (".".join(places[:i]) for i in range(1, len(places) + 1))
            home = next((start for start in starts if start in public), None)
            if home is None or re.search(r"\._", symbol["name"].removeprefix(home)):
                continue
            total += 1
            if not symbol["isTypeKnown"]:
                unknown.add(symbol["name"].removeprefix("streamtool."))
    print(f"\ntypes known: {total - len(unknown)} of {total} public names, {(1 - len(unknown) / total):.1%}")
    assert unknown <= INTERNAL | WITH_INTERNAL
