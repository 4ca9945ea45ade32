"""Other names of formats: each parser of vLLM and SGLang, families and models stand for one of our formats."""

import pytest
from support.sweeps import each

from statemachine import FORMATS
from streamtool.core.errors import SettingsError
from streamtool.models.families import family_of
from streamtool.models.format_aliases import FORMAT_ALIASES, find_format_name
from streamtool.protocols.table import PROTOCOLS
from streamtool.settings import Settings, load

VLLM = """
    deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 cohere_command3 cohere_command4 ernie45 glm45 glm47
    granite-20b-fc granite granite4 hermes poolside_v1 hunyuan_a13b hy_v3 internlm jamba lfm2 kimi_k2 kimi_k3
    llama3_json llama4_json llama4_pythonic longcat mimo minimax minimax_m2 minimax_m3 minicpm5 mistral olmo3 openai
    phi4_mini_json pythonic qwen3_coder qwen3_xml seed_oss step3 step3p5 inkling xlam gigachat3 functiongemma gemma4
    apertus solar_open2
"""
SGLANG = """
    apertus2509 cohere_command4 deepseekv3 deepseekv31 deepseekv32 deepseekv4 dots glm glm45 glm47 gpt-oss kimi_k2
    kimi_k3 lfm2 llama3 mimo minicpm5 mistral muse poolside_v1 pythonic qwen qwen25 qwen3_coder spark25 step3 step3p5
    minimax-m2 minimax-m3 trinity interns1 hermes hunyuan gigachat3 gemma4 inkling
"""


@each("name", sorted({*VLLM.split(), *SGLANG.split()}))
def test_each_parser_of_vllm_and_sglang_is_a_format(name: str):
    assert Settings(format=name).format in FORMATS
    assert Settings(formats=(name,)).formats == (find_format_name(name),)


def test_an_alias_stands_for_a_format_and_hides_none():
    assert {*FORMAT_ALIASES.values()} <= {*FORMATS}
    assert not {*FORMAT_ALIASES} & {*FORMATS}
    assert [find_format_name(name) for name in FORMATS] == [*FORMATS]


@each(
    "given, format",
    [
        ("hermes", "tool_call"),
        ("qwen25", "tool_call"),
        ("Qwen3", "tool_call"),
        ("llama3_json", "llama3"),
        ("Kimi-K2", "kimi_k2"),
        ("DeepSeek-V3.1", "deepseek_v31"),
        ("minimax-m2", "minimax_m2"),
        ("openai", "harmony"),
        ("qwen3:8b", "invoke"),
        ("zai-org/GLM-4.6-FP8", "glm45"),
        ("tool_call", "tool_call"),
        ("auto", "auto"),
    ],
)
def test_the_settings_accept_other_names(given: str, format: str):
    settings = load(
        f'format = "{given}"\n[[model]]\nmatch = "*"\nformat = "{given}"', {"STREAMTOOL_FORMATS": f"hermes,{given}"}
        if format != "auto" else {}
    )  # fmt: skip
    assert settings.format == settings.models[0].format == format
    assert format == "auto" or settings.formats == ("tool_call", format)


def test_the_name_of_a_model_stands_for_what_auto_teaches():
    name = "Qwen/Qwen3-Coder-30B-A3B-Instruct"
    assert Settings(format=name).format == family_of(name).format == Settings().for_model(name).format


def test_an_unknown_name_is_refused_with_the_most_similar_one():
    with pytest.raises(SettingsError, match='unknown format "herms"; did you mean "hermes"'):
        Settings(format="herms")


@each(
    "given, protocol",
    [
        ("openai", "chat"),
        ("anthropic", "messages"),
        ("google", "gemini"),
        ("openai-responses", "responses"),
        ("chat", "chat"),
        ("completions", "completions"),
        ("auto", "auto"),
    ],
)
def test_the_settings_accept_other_names_of_protocols(given: str, protocol: str):
    settings = load(
        f'[upstream.a]\nurl = "http://localhost:1"\nprotocol = "{given}"',
        {} if given in ("auto", "completions") else {"STREAMTOOL_APP_PROTOCOL": given},
    )
    assert settings.upstreams["a"].protocol == protocol
    if settings.app_protocol is not None:
        assert settings.app_protocol == protocol
        assert Settings(paths={"/x": given}).paths == {"/x": protocol}


def test_an_alias_of_a_protocol_hides_no_protocol():
    aliases = [alias for row in PROTOCOLS.values() for alias in row.aliases]
    assert len({*aliases, *PROTOCOLS}) == len(aliases) + len(PROTOCOLS)
