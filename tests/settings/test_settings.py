"""Settings: precedence, references, and errors that name the place and the problem."""

import pytest
from support.sweeps import each

from streamtool.core.errors import SettingsError
from streamtool.settings import LimitSettings, ModelRule, ResultSettings, Settings, ToolSettings, check, load

SAMPLE = """
listen = "127.0.0.1:8700"
mode = "emulate"
format = "auto"
client_keys = ["env:STREAMTOOL_CLIENT_KEY"]

[upstream.local]
url = "http://127.0.0.1:11434"
protocol = "chat"
timeout = { connect = 10, first_byte = 600, idle = 120 }

[[model]]
match = "claude-*"
use = "qwen3:32b"
upstream = "local"
context = 32768
schema = "compact"
schema_budget = 24000

[tool."Bash"]
arguments = "complete"

[results]
max_length = -1
frame = "default"
"""


def failure(text=None, environ=None, overrides=None):
    with pytest.raises(SettingsError) as caught:
        load(text, environ, overrides)
    return caught.value.message


def test_the_sample_file_loads():
    settings = load(SAMPLE, {"STREAMTOOL_CLIENT_KEY": "hush"})
    assert settings.client_keys == {"key 1": "hush"}
    assert settings.upstreams["local"].url == "http://127.0.0.1:11434"
    assert settings.upstreams["local"].timeout.first_byte == 600.0
    assert settings.models[0].match == "claude-*"
    assert settings.tools == {"Bash": ToolSettings("complete")}
    assert (settings.host, settings.port) == ("127.0.0.1", 8700)


def test_no_settings_give_the_defaults():
    settings = load()
    assert settings == Settings()
    assert settings.limits == LimitSettings(
        body=16777216, tools=1024, schema=1048576, held=262144, arguments=16777216, depth=128, name=256, attempts=3
    )
    assert (settings.mode, settings.format, settings.retries, settings.keepalive) == ("emulate", "auto", 2, 10.0)
    assert settings.results == ResultSettings(max_length=-1, frame="default", drop=False, strip=())
    assert settings.paths == {
        "/v1/chat/completions": "chat",
        "/v1/messages": "messages",
        "/v1/messages/count_tokens": "count_tokens",
        "/v1/responses": "responses",
        "/v1/responses/input_tokens": "input_tokens",
        "/v1/responses/compact": "compact",
        "/api/chat": "ollama",
        "/api/generate": "ollama",
        "/v1beta/models/{model}:generateContent": "gemini",
        "/v1beta/models/{model}:streamGenerateContent": "gemini",
        "/v1beta/models/{model}:countTokens": "gemini_count_tokens",
        "/v1/models/{model}:generateContent": "gemini",
        "/v1/models/{model}:streamGenerateContent": "gemini",
        "/v1/models/{model}:countTokens": "gemini_count_tokens",
    }


def test_flags_override_the_environment_which_overrides_the_file():
    text = 'retries = 1\nkeepalive = 1\nreasoning = "drop"'
    environ = {"STREAMTOOL_RETRIES": "2", "STREAMTOOL_KEEPALIVE": "2.5"}
    settings = load(text, environ, {"retries": 3, "reasoning": None})
    assert (settings.retries, settings.keepalive, settings.reasoning) == (3, 2.5, "drop")


def test_the_environment_sets_nested_tables_lists_numbers_and_flags():
    settings = load(
        SAMPLE,
        {
            "STREAMTOOL_CLIENT_KEYS": "a, b",
            "STREAMTOOL_CLIENT_KEY": "x",
            "STREAMTOOL_RESULTS__MAX_LENGTH": "100",
            "STREAMTOOL_RESULTS__DROP": "yes",
            "STREAMTOOL_UPSTREAM__LOCAL__URL": "http://other:1/",
            "STREAMTOOL_TOOL__Read__ARGUMENTS": "complete",
            "STREAMTOOL_DEBUG": "1",
            "HOME": "/",
        },
    )
    assert settings.client_keys == {"key 1": "a", "key 2": "b"}
    assert (settings.results.max_length, settings.results.drop) == (100, True)
    assert settings.upstreams["local"].url == "http://other:1"
    assert settings.arguments_for("Read") == "complete"


def test_clients_are_named_by_table_or_variable_and_otherwise_by_position():
    named = {"alice": "k1", "bob": "k2"}
    assert load('[client_keys]\nalice = "env:ALICE_KEY"\nbob = "k2"', {"ALICE_KEY": "k1"}).client_keys == named
    environ = {"STREAMTOOL_CLIENT_KEYS__ALICE": "k1", "STREAMTOOL_CLIENT_KEYS__BOB": "k2"}
    assert load(None, environ).client_keys == named
    assert load('client_keys = ["other"]', environ).client_keys == named
    assert Settings(client_keys=named).client_keys == named
    assert Settings(client_keys=["k1", "k2"]).client_keys == {"key 1": "k1", "key 2": "k2"}
    assert load("client_keys = {}").client_keys == load("client_keys = []").client_keys == {}


def test_an_upstream_and_a_rule_given_as_flags_take_precedence():
    flags = {"upstream": {"flag": {"url": "sample"}}, "model": [{"match": "*", "use": "other"}]}
    settings = load(SAMPLE, {"STREAMTOOL_CLIENT_KEY": "k"}, flags)
    assert list(settings.upstreams) == ["flag", "local"]
    assert settings.for_model("claude-x").name == "other"


@each(
    ("text", "message"),
    [
        ('lisen = "x:1"', 'lisen: unknown setting; did you mean "listen"?'),
        ("[results]\nmaxlength = 1", 'results.maxlength: unknown setting; did you mean "max_length"?'),
        (
            '[upstream.a]\nurl = "sample"\nprotocl = "chat"',
            'upstream.a.protocl: unknown setting; did you mean "protocol"?',
        ),
        ('[[model]]\nmatch = "x"\nusee = "y"', 'model[0].usee: unknown setting; did you mean "use"?'),
        (
            '[results]\nmax_length = "x"',
            "results.max_length: expected an integer, -1 or more, found the string 'x'",
        ),
        ("retries = true", "retries: expected an integer, 0 or more, found a boolean (true)"),
        ("listen = 3", "listen: expected a non-empty string, found an integer (3)"),
        ('listen = "here"', "listen: expected a host and a port (\"127.0.0.1:8700\"), found the string 'here'"),
        ('keepalive = "x"', "keepalive: expected a positive number of seconds, found the string 'x'"),
        ("limits = 3", "limits: expected a table, found an integer (3)"),
        ("model = 3", "model: expected a list of tables ([[model]]), found an integer (3)"),
        ('[[model]]\nuse = "x"', "model[0].match: this setting is required"),
        ('[upstream.a]\nprotocol = "chat"', "upstream.a.url: this setting is required"),
        (
            '[upstream.a]\nurl = "ftp://x"',
            "upstream.a.url: expected an http or https url, or \"sample\", found the string 'ftp://x'",
        ),
        (
            '[upstream.a]\nurl = "localhost:8000/v1"',
            (
                'upstream.a.url: expected a url such as http://localhost:8000/v1, or "sample", '
                "found the string 'localhost:8000/v1'"
            ),
        ),
        (
            '[upstream.a]\nurl = "http://localhost:8000/v1/chat/completions/"',
            'upstream.a.url: omit "/chat/completions" from the url; streamtool adds it: use http://localhost:8000/v1',
        ),
        (
            '[upstream.a]\nurl = "sample"\nkey = "env:sk-4711"',
            "upstream.a.key: expected the name of an environment variable, in capitals; set that variable to the key",
        ),
        (
            '[upstream.local]\nurl = "sample"\n[[model]]\nmatch = "*"\nupstream = "lokal"',
            'model[0].upstream: unknown upstream "lokal"; did you mean "local"?',
        ),
        ('client_keys = ["env:NO"]', "client_keys[0]: the environment variable NO is not set"),
        ('[client_keys]\nalice = "env:NO"', "client_keys.alice: the environment variable NO is not set"),
        ("client_keys = { alice = 12345 }", "client_keys.alice: expected a non-empty string, found an integer"),
        ('client_keys = "k"', "client_keys: expected a list of keys, or a table of names and keys, found a string"),
        ('client_keys = { a = "k", b = "k" }', 'client_keys: "a" and "b" have the same key; give each its own'),
        ('client_keys = ["k", "x", "k"]', 'client_keys: "key 1" and "key 3" have the same key; give each its own'),
        ('client_keys = { " " = "k" }', "client_keys: expected a name of printable characters, found ' '"),
        ('malformed = "keep"', "malformed: expected one of text, drop, retry, found the string 'keep'"),
        (
            '[upstream.a]\nurl = "sample"\nprotocol = "smoke"',
            (
                "upstream.a.protocol: expected one of auto, chat, messages, responses, ollama, gemini, completions, "
                "found the string 'smoke'"
            ),
        ),
        (
            'calls_in_reasoning = "maybe"',
            "calls_in_reasoning: expected true, false or \"auto\", found the string 'maybe'",
        ),
        (
            '[[model]]\nmatch = "x"\ncalls_in_reasoning = 1',
            'model[0].calls_in_reasoning: expected true, false or "auto", found an integer (1)',
        ),
        ('mode = "emulat"', "mode: expected one of emulate, native, auto, rescue, found the string 'emulat'"),
        ("x =", "the settings file is not valid TOML: Invalid value (at end of document)"),
        ('format = "tool_cal"', 'format: unknown format "tool_cal"; did you mean "tool_call"?'),
        ('formats = ["objekt"]', 'formats[0]: unknown format "objekt"; did you mean "object"?'),
        (
            '[results]\nframe = "tool"',
            'results.frame: "tool" is neither a template ({content} is missing) nor one of default, tool_result, doai, windlass',
        ),
    ],
)
def test_an_error_names_the_place_and_the_expected_value(text, message):
    assert failure(text) == message


def upstream(fields):
    return f"[upstream.a]\n{fields}"


@each(
    ("text", "message"),
    [
        ("retries = " + "9" * 5000, "the settings file contains an integer with too many digits"),
        ("retries = 0x" + "f" * 5000, "retries: expected an integer of at most 64 bits"),
        ("keepalive = 0x" + "f" * 5000, "keepalive: expected an integer of at most 64 bits"),
        ("passthrough = [0x" + "f" * 5000 + "]", "passthrough[0]: expected an integer of at most 64 bits"),
        (".".join("a" * 101) + " = 1", "the settings file is nested too deeply"),
        (" . ".join(["a", "'b.c'", r'"d\".e"'] * 40) + " = 1", "the settings file is nested too deeply"),
        ("[" + ".".join("a" * 101) + "]", "the settings file is nested too deeply"),
        ("results = {x = 1, " + ".".join("a" * 101) + " = 1}", "the settings file is nested too deeply"),
        ("a" + ".a" * 40_000 + " = 1", "the settings file is nested too deeply"),
        (
            upstream(r'url = "http://h/\u0000x"'),
            "upstream.a.url: expected no spaces or control characters, found the string 'http://h/\\x00x'",
        ),
        (
            upstream(r'url = "http://h/a b"'),
            "upstream.a.url: expected no spaces or control characters, found the string 'http://h/a b'",
        ),
        (
            upstream(r'url = "http://user:hush@h\n"'),
            "upstream.a.url: expected no spaces or control characters, found a string",
        ),
        (
            upstream(r'url = "sample"' + "\n" + r'key = "a\nb"'),
            "upstream.a.key: expected no control characters or surrounding spaces, found a string",
        ),
        (
            upstream(r'url = "sample"' + "\n" + r'key = "hush "'),
            "upstream.a.key: expected no control characters or surrounding spaces, found a string",
        ),
        (
            r'client_keys = {a = "x\ty"}',
            "client_keys.a: expected no control characters or surrounding spaces, found a string",
        ),
        (
            r'client_keys = ["k", "\u0085"]',
            "client_keys[1]: expected no control characters or surrounding spaces, found a string",
        ),
        (
            r'store.redis = "redis://:hush\r@h"',
            "store.redis: expected no control characters or surrounding spaces, found a string",
        ),
        (r'recordings = "a\u0000b"', "recordings: expected a string without NUL, found the string 'a\\x00b'"),
    ],
)
def test_values_that_no_request_could_use_are_rejected(text, message):
    assert failure(text) == message


def test_a_value_may_contain_many_dots():
    dotted = ".".join("a" * 500)
    settings = load(f'recordings = "{dotted}"\nphrases = "{dotted} = 1"\n[upstream.a]\nurl = "http://{dotted}"')
    assert settings.recordings == dotted


def test_an_unknown_variable_is_reported_with_the_nearest_name():
    assert (
        failure(None, {"STREAMTOOL_LISTN": "x"}) == "STREAMTOOL_LISTN: unknown setting; did you mean STREAMTOOL_LISTEN?"
    )
    assert failure(None, {"STREAMTOOL_RESULTS__FRAM": "x"}) == 'results.fram: unknown setting; did you mean "frame"?'


def test_direct_construction_fails_with_the_same_message():
    with pytest.raises(SettingsError) as caught:
        Settings(retries=-1)
    assert caught.value.message == "retries: expected an integer, 0 or more, found an integer (-1)"


def test_secrets_appear_in_no_repr_or_error():
    settings = load(
        SAMPLE + '\n[upstream.b]\nurl = "sample"\nkey = "upstream-secret"', {"STREAMTOOL_CLIENT_KEY": "hush"}
    )
    assert settings.upstreams["b"].key == "upstream-secret"
    assert "upstream-secret" not in repr(settings)
    assert "hush" not in repr(settings)
    assert "12345" not in failure("client_keys = [12345]")
    assert "hush" not in failure('client_keys = "hush"')
    assert "hush" not in failure('[upstream.a]\nurl = "http://u:hush@h"')
    assert "hush" not in failure('[upstream.a]\nurl = "http://u:hush@h:port"')


def test_the_first_matching_rule_determines_the_settings_of_a_model():
    settings = load(
        """
        schema = "json"
        select_tools = 8
        context = 100
        [upstream.first]
        url = "sample"
        [upstream.second]
        url = "http://second"
        [[model]]
        match = "claude-*"
        use = "Qwen3-Coder-30B"
        upstream = "second"
        system_role = false
        [[model]]
        match = "*"
        format = "labelled"
        select_tools = 0
        context = 200
        """
    )
    coder, other = settings.for_model("claude-opus"), settings.for_model("claude")
    assert (coder.name, coder.upstream.name, coder.format, coder.context) == (
        "Qwen3-Coder-30B",
        "second",
        "qwen3_coder",
        100,
    )
    assert (coder.prompt.system_role, coder.prompt.schema) == (False, "json")
    assert (coder.prompt.select_tools, other.prompt.select_tools) == (8, 0)
    assert (other.name, other.upstream.name, other.format, other.context) == ("claude", "first", "labelled", 200)


def test_a_flag_that_may_be_auto_is_read_from_every_source():
    assert load().calls_in_reasoning == "auto"
    assert load("calls_in_reasoning = true").calls_in_reasoning is True
    assert load(None, {"STREAMTOOL_CALLS_IN_REASONING": "no"}).calls_in_reasoning is False
    assert load(None, {"STREAMTOOL_CALLS_IN_REASONING": "auto"}).calls_in_reasoning == "auto"


def test_a_model_of_an_unknown_family_is_taught_invoke():
    assert Settings().for_model("llama").format == "invoke"
    assert Settings().for_model("granite-4").format == "tool_call"
    assert Settings().for_model("llama").upstream is None


def test_the_taught_format_is_always_parsed():
    assert Settings().for_model("x").listened_formats is None
    assert Settings(formats=("object",)).for_model("x").listened_formats == ("object", "invoke")
    strict = Settings(format="action_object").for_model("x").listened_formats
    assert strict is not None
    assert {"action_object", "tool_call", "fenced"} <= set(strict)
    assert "tag" not in strict


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.0.0.9:0"])
def test_loopback_needs_no_client_keys(listen):
    assert check(Settings(listen=listen)).listen == listen


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "example.org:1", "192.168.0.1:1"])
def test_any_other_host_needs_client_keys_or_insecure(listen):
    with pytest.raises(SettingsError, match="client_keys"):
        check(Settings(listen=listen))
    assert check(Settings(listen=listen, insecure=True, upstreams={"s": {"url": "sample"}}))  # type: ignore[dict-item]
    assert check(Settings(listen=listen, client_keys=("k",), upstreams={"s": {"url": "sample"}}))  # type: ignore[dict-item]


def test_paths_are_a_table_or_a_list_whose_endings_determine_the_protocol():
    assert load('paths = ["/api/v1/chat/completions"]').paths == {"/api/v1/chat/completions": "chat"}
    assert load('[paths]\n"/talk" = "chat"').paths == {"/talk": "chat"}
    assert (
        failure('paths = ["/talk"]')
        == 'paths[0]: "/talk" does not identify its protocol; write paths = { "/talk" = "chat" }'
    )
    assert load('paths = ["/a/messages", "/a/messages/count_tokens", "/a/responses"]').paths == {
        "/a/messages": "messages",
        "/a/messages/count_tokens": "count_tokens",
        "/a/responses": "responses",
    }


def test_rules_can_be_given_in_python():
    settings = Settings(models=(ModelRule(match="a*", use="b"),))
    assert settings.for_model("abc").name == "b"
