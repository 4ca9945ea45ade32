"""Properties derived from a model's name: the format it is taught, other formats to parse, and open reasoning."""

import json

import pytest
from support.sweeps import each

from statemachine import FORMATS, OPT_IN, Parser
from streamtool.middleware import ToolMiddleware
from streamtool.models.families import FAMILIES, UNKNOWN, family_of, is_teachable, special_tokens
from streamtool.settings import ModelRule, Settings
from streamtool.testing import ScriptedUpstream, stream_asgi, text

TAUGHT = {
    "claude-opus-4": "invoke",
    "anthropic/claude-3.5-sonnet:beta": "invoke",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3_coder",
    "qwen3-coder:30b": "qwen3_coder",
    "unsloth/Qwen3.5-4B-GGUF": "qwen3_coder",
    "Qwen/Qwen3.7": "qwen3_coder",
    "Qwen3.8-Flash": "qwen3_coder",
    "qwen4:72b": "qwen3_coder",
    "Qwen/Qwen3-4B": "invoke",
    "hf.co/bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M": "invoke",
    "qwen3:32b": "invoke",
    "stepfun-ai/Step-3.5-Flash": "qwen3_coder",
    "step3": "invoke",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": "nemotron",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "nemotron",
    "XiaomiMiMo/MiMo-7B-RL": "mimo",
    "MiMo-V2-Flash": "mimo",
    "XiaomiMiMo/MiMo-VL-7B-RL": "tool_call",
    "ByteDance-Seed/Seed-OSS-36B-Instruct": "seed_oss",
    "MiniMaxAI/MiniMax-M1-80k": "minimax_m1",
    "MiniMaxAI/MiniMax-M2.1": "minimax_m2",
    "MiniMax-M3": "invoke",
    "zai-org/GLM-4.5-Air": "glm45",
    "GLM-4.6V": "glm45",
    "glm-4.7-flash:latest": "glm47",
    "z-ai/glm-5": "glm47",
    "zai-org/GLM-5.2-Air": "glm47",
    "zai-org/GLM-4.9": "glm47",
    "THUDM/GLM-4-9B-0414": "invoke",
    "inclusionAI/Ling-3.0-flash": "glm45",
    "IQuestLab/IQuest-Q1-Instruct": "iquest",
    "IQuestLab/IQuest-Coder-V2-40B-Instruct": "iquest_coder",
    "iquest-coder-2": "iquest_coder",
    "IQuestLab/IQuest-Coder-V1-40B-Instruct": "invoke",
    "Tele-AI/TeleChat4-36B": "telechat",
    "Tele-AI/TeleChat3-36B-Thinking": "invoke",
    "iflytek/Spark3-30B": "glm47",
    "x-ai/grok-4-fast": "grok",
    "facebook/cwm": "cwm",
    "RWKV7-Goose-World3-2.9B": "rwkv",
    "stepfun-ai/Step-Audio-2-mini": "invoke",
    "FreedomIntelligence/openPangu-2.0-Flash": "invoke",
    "sbintuitions/sarashina2.2-3b-instruct-v0.1": "invoke",
    "LGAI-EXAONE/K-EXAONE-2-236B-A23B": "tool_call",
    "internlm/Intern-S2": "invoke",
    "flint-7b": "invoke",
    "kolibri-1": "invoke",
    "RekaAI/reka-edge-2603": "tool_call",
    "ibm-granite/granite-4.2-8b": "tool_call",
    "speakleash/Bielik-11B-v3.0-Instruct": "tool_call",
    "grok-code-fast-1": "grok",
    "ByteDance-Seed/UI-TARS-1.5-7B": "ui_tars",
    "bytedance/ui-tars-2": "ui_tars",
    "tencent/Hunyuan-A13B-Instruct": "hunyuan_a13b",
    "tencent/Hunyuan-4B-Instruct": "invoke",
    "tencent/Hy3-preview": "hunyuan_v3",
    "meituan-longcat/LongCat-Flash-Chat": "longcat",
    "rednote-hilab/dots.llm1.inst": "dots",
    "openbmb/MiniCPM5-1B": "minicpm5",
    "openbmb/MiniCPM-V-4_5": "invoke",
    "allenai/Olmo-3-7B-Instruct": "olmo3",
    "olmo-30b": "invoke",
    "microsoft/Phi-4-mini-instruct": "invoke",
    "phi4:14b": "invoke",
    "Salesforce/xLAM-2-8b-fc-r": "xlam",
    "google/gemma-3-27b-it": "invoke",
    "google/gemma-3n-E4B-it": "invoke",
    "gemma3:1b": "tool_code",
    "google/gemma-3-1b-it": "tool_code",
    "gemma3:12b": "invoke",
    "gemma-2-2b-it": "tool_code",
    "google/gemma-2b": "invoke",
    "gpt-5.1-mini": "invoke",
    "gemini-3-pro": "invoke",
    "gemma-4-31B-it": "invoke",
    "google/functiongemma-270m-it": "invoke",
    "muse-glimmer": "muse",
    "LatitudeGames/Muse-12B": "invoke",
    "meetkai/functionary-small-v3.2": "functionary",
    "meetkai/functionary-medium-v3.1": "invoke",
    # families whose markers are special tokens
    "upstage/Solar-Open-100B": "invoke",
    "naver-hyperclovax/HyperCLOVAX-SEED-Think-14B": "invoke",
    "Qwen/Qwen2.5-Coder-7B-Instruct": "invoke",
    "CohereLabs/command-a-reasoning-08-2025": "invoke",
    "meta-llama/Llama-3.3-70B-Instruct": "invoke",
    "llama3.2:1b": "invoke",
    "NousResearch/Hermes-3-Llama-3.1-8B": "invoke",
    "watt-ai/watt-tool-8B": "tool_code",
    "mistralai/Mistral-Small-24B-Instruct-2501": "invoke",
    "mistralai/Ministral-8B-Instruct-2410": "invoke",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": "invoke",
    "LGAI-EXAONE/K-EXAONE-236B-A23B": "tool_call",
    "ernie-4.5": "tool_call",
    "mistralai/Devstral-Small-2507": "invoke",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": "invoke",
    "deepseek-ai/DeepSeek-V3.2": "invoke",
    "moonshotai/Kimi-K2-Instruct": "invoke",
    "ibm-granite/granite-4.0-h-small": "tool_call",
    "openai/gpt-oss-120b": "tool_code",
    "CohereLabs/c4ai-command-a-03-2025": "invoke",
    "LiquidAI/LFM2-8B-A1B": "invoke",
    # no known family, and names that only resemble one
    "sample": "invoke",
    "": "invoke",
    "mimosa-7b": "invoke",
    "bailing-3": "invoke",
    "minimax/other": "invoke",
}


@each("model", TAUGHT)
def test_the_format_taught_to_a_model(model):
    assert family_of(model).format == TAUGHT[model]
    assert family_of(model.upper()).format == TAUGHT[model]
    assert Settings().for_model(model).format == TAUGHT[model]


def test_every_row_matches_a_name_and_refers_to_known_formats():
    met = [family_of(model) for model in (*TAUGHT, *OPEN, "ernie-4.5")]
    for family in FAMILIES:
        assert family in met, family.pattern
        assert family.format in FORMATS
        assert set(family.listen) <= OPT_IN
    assert UNKNOWN not in FAMILIES


def test_a_format_by_measurement_is_one_of_those_that_were_measured():
    assert {family.format for family in (UNKNOWN, *FAMILIES) if family.source == "toolform"} == {"invoke", "tool_code"}
    assert {family.source for family in FAMILIES} == {"template", "toolform"}


def test_families_are_taught_only_formats_of_ordinary_text():
    for family in FAMILIES:
        assert is_teachable(family.format), (family.pattern, special_tokens(FORMATS[family.format]))


def test_special_tokens_are_recognised_by_their_spelling():
    assert special_tokens(FORMATS["llama3"]) == ("<|python_tag|>",)
    assert special_tokens(FORMATS["mistral"])[0] == "[TOOL_CALLS]"
    assert "<tool_call|>" in special_tokens(FORMATS["gemma4"])
    assert "<escape>" in special_tokens(FORMATS["functiongemma"])
    for name in ("deepseek_v3", "deepseek_v32", "harmony", "kimi_k2", "minimax_m3", "k2_horizon", "lfm2", "step3"):
        assert not is_teachable(name), name
    for name in (
        "tool_call",
        "labelled",
        "invoke",
        "fenced",
        "object",
        "command",
        "react",
        "qwen3_coder",
        "glm45",
        "tag",
        "minimax_flags",
    ):
        assert is_teachable(name), name


# --- formats to parse ------------------------------------------------------------------------------------------------


def test_a_family_may_enable_an_opt_in_format():
    assert "ernie" in listens("ERNIE-4.5-21B-A3B-Thinking")
    assert "functionary" in listens("functionary-medium-v3.1")
    assert "functionary" in listens("functionary-small-v3.2")
    assert Settings().for_model("llama").listened_formats is None
    assert "tag" not in listens("ernie-4.5")


def listens(model, **settings):
    found = Settings(**settings).for_model(model).listened_formats
    assert found is not None
    return found


def test_the_taught_format_wins_over_a_similar_one():
    """Otherwise a value in MiMo's format would lose its newlines, which are markup in Qwen's format."""
    names = listens("mimo-7b")
    assert "mimo" in names
    assert "qwen3_coder" not in names
    text = "<function=f>\n<parameter=a>\nline\n</parameter>\n</function>"
    events = Parser({"f": {"properties": {"a": {"type": "string"}}}}, formats=names).feed(text)
    assert "".join(event.text for event in events if hasattr(event, "text")) == '{"a": "\\nline\\n"}'


def test_settings_override_the_family():
    assert Settings(format="labelled").for_model("claude-opus").format == "labelled"
    assert Settings(formats=("react",)).for_model("ernie-4.5").listened_formats == ("react", "tool_call")
    rules = (ModelRule(match="claude*", format="react"), ModelRule(match="*", use="GLM-4.6"))
    settings = Settings(models=rules)
    assert settings.for_model("claude-opus").format == "react"
    assert settings.for_model("anything").format == "glm45"


# --- reasoning that stays open ---------------------------------------------------------------------------------------

OPEN = (
    "Qwen3.5-27B",
    "qwen3.6-plus",
    "MiniMax-M2.1",
    "Kimi-K2-Thinking",
    "kimi-k3",
    "DeepSeek-V4-Flash",
    "ling-3.0-flash",
    "Qwen3-235B-A22B-Thinking-2507",
    "NVIDIA-Nemotron-3-Nano-30B-A3B",
    "plamo-3-nicl-8b-base",
    "inkling-nvfp4",
    "Laguna-M.1",
    "Trinity-Large-Thinking",
    "GLM-4.7-Flash",
    "hunyuan-v3",
)


@pytest.mark.parametrize("model", OPEN)
def test_calls_in_reasoning_count_for_families_that_leave_it_open(model):
    assert Settings().for_model(model).calls_in_reasoning
    assert Settings(calls_in_reasoning=False).for_model(model).calls_in_reasoning is False


def test_calls_in_reasoning_of_other_families_require_a_setting():
    rule = ModelRule(match="qwq*", calls_in_reasoning=True)
    settings = Settings(models=(rule, ModelRule(match="kimi*", calls_in_reasoning=False)))
    assert not settings.for_model("qwen3:32b").calls_in_reasoning
    assert settings.for_model("qwq-32b").calls_in_reasoning is True
    assert settings.for_model("kimi-k2").calls_in_reasoning is False
    assert Settings(calls_in_reasoning=True).for_model("llama").calls_in_reasoning is True
    by_family = Settings(calls_in_reasoning=True, models=(ModelRule(match="*", calls_in_reasoning="auto"),))
    assert not by_family.for_model("llama").calls_in_reasoning


@pytest.mark.anyio
@pytest.mark.parametrize(("model", "called"), [("moonshotai/Kimi-K2-Thinking", True), ("qwen3:32b", False)])
async def test_the_family_reaches_the_parser_and_the_formats_found_the_record(model, called):
    records = []
    script = text('<think>I need a ping. <invoke name="ping"></invoke>', size=5)
    app = ToolMiddleware(ScriptedUpstream(script), on_exchange=records.append)
    tool = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Ping!"}], "tools": [tool]}
    async with stream_asgi(app, body=json.dumps(body).encode()) as reply:
        received = await reply.body()
    assert (b'"name":"ping"' in received) is called
    assert [(record.calls, record.formats) for record in records] == [(1, ("invoke",)) if called else (0, ())]
