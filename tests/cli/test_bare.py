"""Without the `serve` extra, the version, the help and `parse` work, and other commands name the extra."""

import subprocess
import sys

import pytest
import typer
from support.servers import ROOT

from streamtool.cli import bare
from streamtool.cli.app import app

WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({(*bare.EXTRA, 'click', 'pydantic')}))"
REPLY = '<invoke name="ping" n="1"/>'


def ran(*argv: str, given: str = "", **env: str) -> tuple[int, str, str]:
    code = f"{WITHOUT}; from streamtool.cli import main; sys.exit(main())"
    command = [sys.executable, "-W", "error", "-c", code, *argv]
    done = subprocess.run(
        command,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **env},
    )
    return done.returncode, done.stdout, done.stderr


def test_the_options_of_parse_match_the_full_command_line():
    command = typer.main.get_command(app).commands["parse"]  # type: ignore[attr-defined]
    full = {
        p.name: (p.opts[0], None if p.is_flag else p.metavar, p.help) for p in command.params if p.opts != ["files"]
    }
    assert {field: rest for field, *rest in bare.OPTIONS} == {field: list(rest) for field, rest in full.items()}


def test_version_and_help():
    code, out, _ = ran("--version")
    assert code == 0
    assert out.startswith("streamtool ")
    code, out, _ = ran("--help")
    assert code == 0
    assert 'pip install "streamtool[serve]"' in out
    assert ran("parse", "--help")[1].startswith("usage: streamtool parse")


def test_parse_from_a_pipe():
    code, out, err = ran("parse", given=REPLY, FORCE_COLOR="1")
    assert (code, err) == (0, "")
    assert out.splitlines()[:3] == [
        "call       ping  format invoke",
        'arguments  "{\\"n\\": 1}"',
        "end        complete",
    ]
    line = '{"text": "@ping {}"}\n'
    code, out, _ = ran("parse", "--field", "text", "--jobs", "1", given=line)
    assert code == 0
    assert '"calls": [{"name": "ping"' in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("serve", 'this command needs the extra "serve" ('),
        ("parse --page", 'this command needs the extra "serve" ('),
        ("parse missing.txt", "missing.txt cannot be read"),
        ("parse --delta 0", "expected a whole number that is at least 1, found '0'"),
        ("parse --formats nope", "--formats: unknown format"),
        ("", "usage: streamtool"),
    ],
)
def test_everything_else_is_one_sentence(argv, says):
    code, out, err = ran(*argv.split())
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
