"""`docs/results.md` is made from stored runs: what `streamtool eval --json` prints."""

from collections.abc import Mapping
from pathlib import Path

from streamtool.core.json_value import json_line
from streamtool.evaluation.journal import Journal, Subject
from streamtool.evaluation.judge import Verdict
from streamtool.evaluation.measure import ScenarioOutcome
from streamtool.evaluation.report import document, report_of
from streamtool.evaluation.run import schedule_of
from streamtool.evaluation.variants import EvaluatedVariant
from tools import results

Cases = Mapping[str, tuple[int, int]]
"""Group → the number of right cases and of all cases."""


def store(folder: Path, command: str, cases: Cases, *, choice: str = "auto", date: str = "2026-12-01") -> None:
    """Store a run with one variant: wrong replies contain no call, or a false one in the group `irrelevance`."""
    words = command.split()
    mode = "naive" if "naive" in words else "native" if "native" in words else "emulate"
    variant = EvaluatedVariant(
        mode,
        "invoke" if mode == "emulate" else "",
        forcing="schema" if "schema" in words else "auto",
    )
    names = tuple(f"{group} {number}" for group, (_, count) in cases.items() for number in range(count))
    suite = "BFCL v4" if "bfcl" in words else "streamtool 2"
    url, command = "http://127.0.0.1:1", f"streamtool eval URL {command}"
    protocol = "completions" if "completions" in words else "chat"
    subject = Subject(
        "small", "llama.cpp b1", url, protocol, date, "1.0", 1, suite, (variant,), names, choice, command=command
    )
    journal = Journal(subject)
    for group, (right, count) in cases.items():
        expected = group != "irrelevance"
        for number in range(count):
            good = number < right
            verdict = Verdict(good, good and expected, good and expected, True, not good and not expected, expected)
            demanded = choice == "required" and expected
            journal.add(variant.name, ScenarioOutcome(f"{group} {number}", verdict, group, demanded, requests=1))
    report = report_of(journal, schedule_of(journal))
    folder.mkdir(exist_ok=True)
    name = f"{len(list(folder.iterdir()))}.json"
    (folder / name).write_text(json_line(document(report)) + "\n", encoding="utf-8")


def sections(folder: Path) -> str:
    return results.page(folder).partition("measures yours.\n\n")[2].partition("## Send yours")[0]


def test_runs_fill_the_rows_that_they_measured(tmp_path):
    store(tmp_path, "--format invoke", {"choice": (6, 10), "irrelevance": (1, 4)})
    store(tmp_path, "--mode native", {"choice": (5, 10)})
    store(tmp_path, "--mode naive", {"choice": (1, 10)}, date="2026-11-30")
    store(tmp_path, "--format invoke --suite bfcl", {"multiple": (20, 40)})
    store(tmp_path, "--format invoke --suite bfcl --requests 8", {"multiple": (8, 8), "irrelevance": (8, 8)})
    store(tmp_path, "--format invoke --forcing schema", {"choice": (9, 10), "irrelevance": (4, 4)}, choice="required")
    assert (
        sections(tmp_path)
        == """\
## small

llama.cpp b1, `chat`; streamtool 1.0; 2026-11-30 to 2026-12-01.

**The model may call tools**

|  | right | called | right tool | false calls | simple | multiple | irrelevance |
|---|---|---|---|---|---|---|---|
| naive baseline | 1/10 (2–40) | 10 % | 10 % |  |  |  |  |
| the server's own tool calling | 5/10 (24–76) | 50 % | 50 % |  |  |  |  |
| streamtool, invoke | 7/14 (27–73) | 60 % | 60 % | 75 % |  | 20/40 (35–65) | 8/8 (68–100) |

**A call is demanded where one is expected (`--choice required`)**

|  | right | called | right tool | simple | multiple |
|---|---|---|---|---|---|
| streamtool, invoke, forcing schema | 9/10 (60–98) | 90 % | 90 % |  |  |

To repeat the runs, with the server's address for `URL`:

```sh
EVAL="streamtool eval URL"
$EVAL --format invoke
$EVAL --format invoke --forcing schema
$EVAL --format invoke --suite bfcl
$EVAL --format invoke --suite bfcl --requests 8
$EVAL --mode naive
$EVAL --mode native
```

"""
    )


def test_rows_of_several_protocols_name_theirs(tmp_path):
    store(tmp_path, "--protocol completions --mode naive", {"choice": (1, 10)})
    store(tmp_path, "--protocol chat --mode native", {"choice": (2, 10)})
    page = sections(tmp_path)
    assert page.count("## small") == 1
    assert "\nllama.cpp b1, `chat`, `completions`; " in page
    assert "\n| naive baseline, over `completions` | 1/10 (2–40)" in page
    assert "\n| the server's own tool calling, over `chat` | 2/10 (6–51)" in page


def test_rows_and_models_without_a_run_are_absent(tmp_path):
    assert sections(tmp_path) == "No run is stored.\n\n"
    store(tmp_path, "--mode naive", {"choice": (1, 10)})
    store(tmp_path, "--requests 9 --mode naive", {"choice": (1, 10)}, date="2026-12-02")
    store(tmp_path, "--requests 9 --mode native", {}, date="2026-12-02")
    page = sections(tmp_path)
    assert "own tool calling" not in page
    assert "demanded" not in page
