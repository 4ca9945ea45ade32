"""Run vLLM's own tests of tool parsers with ours in place of each of its parsers, and count the passes by parser.

    python tests/adapters/their_tests.py FOLDER

FOLDER is vLLM's source distribution, unpacked, of the installed version. `docs/adapters.md` has the table.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
OTHERS = ("test_utils.py", "test_structural_tag_registry.py")
"""Tests that do not use a tool parser."""


def main(folder: Path) -> int:
    """Run the tests, and return the exit code of pytest."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "tests"
        for part in ("tool_parsers", "parser"):
            shutil.copytree(folder / "tests" / part, copy / part)
        (copy / "__init__.py").touch()
        (copy.parent / "pytest.ini").write_text("[pytest]\n")
        without = [f"--ignore=tests/tool_parsers/{name}" for name in OTHERS]
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "in_their_place", "-W", "ignore", *without]
        paths = f"{HERE}:{HERE.parents[1]}"
        return subprocess.run(
            [*command, "tests/tool_parsers"], cwd=copy.parent, env={"PYTHONPATH": paths, "PATH": ""}, check=False
        ).returncode


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
