"""Options of the entry points: an explicit option overrides the settings, whatever its value."""

import attrs
import pytest

from streamtool import Agent, Proxy, Settings, SettingsError, SyncToolTransport, ToolMiddleware, ToolTransport


async def app(scope, receive, send):
    raise AssertionError("nothing is asked")


ENTRIES = {
    "middleware": lambda **options: ToolMiddleware(app, **options).settings,
    "transport": lambda **options: ToolTransport(**options)._core.settings,
    "sync transport": lambda **options: SyncToolTransport(**options)._core.settings,
    "proxy": lambda **options: Proxy(**options).settings,
    "agent": lambda **options: Agent("sample", **options).settings,
}


@pytest.fixture(params=ENTRIES)
def entry(request):
    return ENTRIES[request.param]


def test_an_option_that_equals_the_default_wins(entry):
    assert entry(settings=Settings(mode="native", retries=0), mode="emulate", retries=2).mode == "emulate"
    assert entry(settings=Settings(mode="native", retries=0), mode="emulate", retries=2).retries == 2


def test_an_omitted_option_falls_back_to_the_settings(entry):
    settings = entry(settings=Settings(mode="native", reasoning="drop"), mode="rescue")
    assert (settings.mode, settings.reasoning) == ("rescue", "drop")


def test_every_setting_is_an_option(entry):
    for field in attrs.fields(Settings):
        if field.name not in ("upstreams", "spans"):
            value = getattr(Settings(), field.name)
            assert getattr(entry(**{field.name: value}), field.name) == value


def test_an_unknown_option_is_reported_with_the_nearest_name(entry):
    with pytest.raises(SettingsError, match='retrys: unknown setting; did you mean "retries"'):
        entry(retrys=1)


def test_an_invalid_value_is_reported(entry):
    with pytest.raises(SettingsError, match="mode: expected one of emulate, native, auto, rescue"):
        entry(mode="nativ")
