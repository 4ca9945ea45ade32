"""The fixtures of canitoolcall, a suite that compares the parsers of engines, replayed through streamtool's parser."""

from conformance import canitoolcall_suite


def test_every_fixture_passes_or_is_known_to_be_served_better(capsys) -> None:
    code = canitoolcall_suite.main([])
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert shown.endswith(f" {469 - len(canitoolcall_suite.BETTER)} of 469\n")
