"""The files of a release agree with each other."""

import re
import tomllib

import pytest
from support.servers import ROOT

yaml = pytest.importorskip("yaml")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CANDIDATE = re.compile(r"(\d+\.\d+\.\d+)(?:rc(\d+))?")


def test_the_version_is_the_same_everywhere():
    version = PROJECT["version"]
    release, candidate = CANDIDATE.fullmatch(version).groups()  # type: ignore[union-attr]
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "Chart.yaml").read_text())
    assert chart["appVersion"] == version
    assert chart["version"] == release + (f"-rc.{candidate}" if candidate else "")
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    heading = (ROOT / "CHANGELOG.md").read_text().partition("\n## ")[2].partition("\n")[0]
    assert heading.startswith(release)
    assert (f"(release candidate: {version})" in heading) == bool(candidate)


def test_addresses_lead_to_one_repository():
    source = PROJECT["urls"]["Source"]
    assert all(address.startswith(source) for address in PROJECT["urls"].values())
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["repository-code"] == source
    (contact,) = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text())["contact_links"]
    assert contact["url"] == f"{source}/security/advisories/new"


def test_the_links_of_files_in_the_root_resolve():
    for page in ("SECURITY.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "THIRD_PARTY.md"):
        for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
            assert (ROOT / target).exists(), (page, target)
