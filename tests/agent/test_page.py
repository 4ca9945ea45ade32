"""The documentation page about the agent: every file on it is written and run, and prints what the page shows."""

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("mcp")
PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "agent.md"
FILE = re.compile(r"```python\n# (\w+\.py)\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)


def test_every_file_of_the_page_runs_and_prints_the_shown_output(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ran = []
    for name, code, shown in FILE.findall(PAGE.read_text(encoding="utf-8")):
        Path(name).write_text(code, encoding="utf-8")
        if not shown:  # a server, which another file starts
            continue
        runpy.run_path(name, run_name="__main__")
        assert capsys.readouterr().out == shown
        ran.append(name)
    assert ran == ["agent.py"] * 3
    assert sorted(path.name for path in tmp_path.glob("*.py")) == ["agent.py", "notes.py"]
