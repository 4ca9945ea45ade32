"""The table: every known format, a few lines each. Adding one means adding a row and `tests/formats/<name>.md`.

What the fields mean is said in `format.py`; the grammar of each format, with examples, in `docs/formats.md`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from statemachine.formats.format import (
    Anchor,
    Envelope,
    Expression,
    Format,
    Json,
    MessageBody,
    NameRule,
    Parameters,
    Section,
    Variant,
    check,
)

CALLED = Envelope(name=("tool", "name", "function", "tool_name", "action"))
PARAMETERS = Envelope(arguments=("parameters", "arguments", "params", "args", "input", "tool_input", "action_input"))
ARRAY = Envelope(array=True)
COHERE = Envelope(
    name=("tool_name", "name", "tool", "function", "action"),
    arguments=PARAMETERS.arguments,
    id=("tool_call_id", "id", "call_id"),
    array=True,
)
INVOKE = Parameters(
    key="<{ns}parameter{ }",
    key_rule=NameRule(attribute="name"),
    close="</{ns}parameter>",
    wrappers=(("<{ns}parameter_list>", "</{ns}parameter_list>"),),
)
INVOKE_NAME = NameRule(ends=(">", "/>"), attribute="name")
FUNCTION = Parameters(key="<parameter=", key_rule=NameRule(), close="</parameter>", trim=True)
VERBATIM = Parameters(key="<parameter=", key_rule=NameRule(), close="</parameter>")
ARG_KEYS = Parameters(
    key="<arg_key{:}>", key_rule=NameRule(ends=("</arg_key{:}>{*}<arg_value{:}>",)), close="</arg_value{:}>"
)

GLM_NAME = NameRule(ends=("<arg_key{:}>", "</tool_call{:}>", "{"), ignored_words=("function",))

RFL = Parameters(key="<rfl:parameter{ }", key_rule=NameRule(attribute="name"), close="</rfl:parameter>", trim=True)
TABLE = (
    # ---- taught to models that have no tools of their own
    Format(
        "tool_call",
        openers=("<tool_call{:}>",),
        variants=(Variant(Envelope()),),
        close="</tool_call{:}>",
        models="Hermes, Qwen 2.5, Qwen 3; taught by default",
        about="Several blocks may follow one another, a block may hold an array of calls, or several calls, the last "
        "block may lack its closer, and a call without arguments has `{}`.",
    ),
    Format(
        "labelled",
        openers=("TOOL_CALL{_}:{_}",),
        variants=(Variant(Json(), NameRule(ends=("ARGUMENTS{_}:",))),),
        anchor=Anchor.LINE,
        about="Letter case and the blanks around the colons do not matter. Several pairs may follow one another.",
    ),
    Format(
        "invoke",
        wrappers=(("<tool_calls{:}>", "</tool_calls{:}>"), ("<{ns}function_calls>", "</{ns}function_calls>")),
        openers=("<{ns}invoke{ }",),
        variants=(Variant(INVOKE, INVOKE_NAME),),
        close="</{ns}invoke>",
        models="Claude",
        about="Around the calls `<function_calls>` or `<tool_calls>` may stand, around the parameters "
        "`<parameter_list>`; every tag may carry a namespace prefix; quotes may be double, single or missing. The "
        'attribute style, `<invoke name="f" city="Paris"/>`, is read too. A value is taken as it stands, its own line '
        "ends included.",
    ),
    Format(
        "fenced",
        variants=(Variant(CALLED),),
        fence=("json action", "tool_call", "tool_use", "tool_code"),
        about="The info string may be one of the listed ones, `json`, or missing. A fence that turns out to hold no "
        "call is an answer: it comes out as text, the fence included.",
    ),
    Format(
        "object",
        variants=(Variant(CALLED),),
        about="Has no marker of its own, so a call is believed only once name and arguments key have been read. An "
        "object that is no call is text to its closing brace, and nothing is looked for inside of it.",
    ),
    Format(
        "openai_fragment",
        openers=('"tool_calls"{*}:',),
        variants=(Variant(Envelope(calls="tool_calls", written_nest="function", array=True, as_string=True)),),
        anchor=Anchor.LINE,
        about="The enclosing braces may be there or not. The arguments are a JSON string.",
    ),
    Format(
        "command",
        openers=("@",),
        variants=(Variant(Json(), NameRule(ends=("{",), one_line=True, ignored_words=("tool",))),),
        anchor=Anchor.LINE,
        about="`@tool f {…}` is read too. Mentions and mail addresses are text, unless they name an offered tool.",
    ),
    Format(
        "action_object",
        variants=(
            Variant(
                Envelope(
                    name=("tool",),
                    arguments=("args",),
                    nest=("action",),
                    written_nest="action",
                    thought="thought",
                    final=("final", "content"),
                ),
            ),
        ),
        anchor=Anchor.REPLY,
        about='A strict protocol in which the whole reply is one object: a call, or `{"final": {"content": …}}`, '
        "whose content is the visible text and streams as it is decoded. The thought is reasoning.",
    ),
    Format(
        "react",
        openers=("Action{_}:{_}",),
        variants=(Variant(Json(), NameRule(ends=("Action Input{_}:",))),),
        anchor=Anchor.LINE,
        about="`Thought:` lines before it are text. An invented `Observation:` after it is not a result.",
    ),
    # ---- JSON arguments, native to models
    Format(
        "function_call",
        wrappers=(("<tools>", "</tools>"), ("<function>", "</function>")),
        openers=("<function-call>",),
        variants=(Variant(Envelope(by_keys=True)),),
        close="</function-call>",
        models="Qwen 2.5 Coder",
        about="`<tools>` and `<function>` may stand in place of the tag. Since a list of tools may stand in these, "
        "a call in them is believed only once name and arguments key have been read.",
    ),
    Format(
        "hyperclova",
        openers=("-> tool/function_call",),
        variants=(Variant(ARRAY),),
        close="<|im_end|>",
        closed=False,
        anchor=Anchor.LINE,
        models="HyperCLOVA X",
    ),
    Format(
        "llama3",
        openers=("<|python_tag|>",),
        variants=(Variant(PARAMETERS),),
        lines=False,
        models="Llama 3.1, 3.2, 3.3",
        about="A bare object at the start of the reply is read as `object`, `<function=f>{…}</function>` as "
        "`qwen3_coder`. Between several calls a semicolon may stand.",
    ),
    Format(
        "mistral",
        openers=("[TOOL_CALLS]",),
        variants=(Variant(ARRAY), Variant(Json(), NameRule(ends=("[ARGS]", "{"), id="[CALL_ID]"))),
        close="[/TOOL_CALLS]",
        closed=False,
        sections=(Section("[THINK]", "[/THINK]"),),
        models="Mistral, Ministral, Devstral, Magistral",
        about="Newer models write `[TOOL_CALLS]f[ARGS]{…}`, perhaps with `[CALL_ID]…` in between, once per call.",
    ),
    Format(
        "deepseek_v3",
        wrappers=(
            ("<{|}tool▁calls▁begin{|}>", "<{|}tool▁calls▁end{|}>"),
            ("<{|}tool▁call▁begin{|}>", "<{|}tool▁call▁end{|}>"),
        ),
        around="<{|}tool▁calls▁begin{|}>",
        around_each="<{|}tool▁call▁begin{|}>",
        openers=("function<{|}tool▁sep{|}>",),
        variants=(Variant(Json(), NameRule(ends=("```json",))),),
        close="```",
        lines=False,
        models="DeepSeek V3, R1",
    ),
    Format(
        "deepseek_v31",
        wrappers=(("<{|}tool▁calls▁begin{|}>", "<{|}tool▁calls▁end{|}>"),),
        around="<{|}tool▁calls▁begin{|}>",
        openers=("<{|}tool▁call▁begin{|}>",),
        variants=(Variant(Json(), NameRule(ends=("<{|}tool▁sep{|}>", "<{|}tool▁call▁end{|}>"))),),
        close="<{|}tool▁call▁end{|}>",
        lines=False,
        models="DeepSeek V3.1",
    ),
    Format(
        "kimi_k2",
        wrappers=(
            ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            ("<|tool_call_section_begin|>", "<|tool_call_section_end|>"),
        ),
        around="<|tool_calls_section_begin|>",
        openers=("<|tool_call_begin|>",),
        variants=(
            Variant(
                Json(),
                NameRule(
                    ends=("<|tool_call_argument_begin|>", "<|tool_call_end|>"), spelling="functions.{name}:{index}"
                ),
            ),
        ),
        close="<|tool_call_end|>",
        lines=False,
        models="Kimi K2",
        about="The name stands inside of the call's id.",
    ),
    Format(
        "solar",
        wrappers=(("<|begin|>assistant{*}<|tool_calls|>", "<|calls|>"), ("<|tool_calls|>", "<|calls|>")),
        around="<|tool_calls|>",
        openers=("<|tool_call:begin|>",),
        variants=(
            Variant(
                Json(),
                NameRule(ends=("<|tool_call:args|>", "<|tool_call:end|>"), id_end="<|tool_call:name|>"),
            ),
        ),
        close="<|tool_call:end|>",
        sections=(
            Section("<|think|>", "<|end|>", anchor=Anchor.ANYWHERE),
            Section("<|begin|>assistant{*}<|think|>", "<|end|>", anchor=Anchor.ANYWHERE),
            Section("<|content|>", "<|end|>", text=True, anchor=Anchor.ANYWHERE),
            Section("<|begin|>assistant{*}<|content|>", "<|end|>", text=True, anchor=Anchor.ANYWHERE),
        ),
        lines=False,
        models="Solar Open",
        about="Before the name stands the call's id.",
    ),
    Format(
        "solar_open2",
        openers=("<|tool_call:start|>",),
        variants=(
            Variant(
                Parameters(
                    key="<|tool_arg:start|>",
                    key_rule=NameRule(ends=("<|tool_arg:value|>",)),
                    close="<|tool_arg:end|>",
                ),
                NameRule(ends=("<|tool_arg:start|>", "<|tool_call:end|>", "{")),
            ),
        ),
        close="<|tool_call:end|>",
        sections=(Section("<|think:start|>", "<|think:end|>", anchor=Anchor.ANYWHERE),),
        stops=("<|im:end|>",),
        models="Solar Open 2, Solar Pro 4",
    ),
    Format(
        "granite",
        openers=("<|tool_call|>", "<function_call>"),
        variants=(Variant(ARRAY),),
        close="</function_call>",
        closed=False,
        models="Granite 3, Granite 20B",
        about="Granite 4 writes `tool_call`.",
    ),
    Format(
        "internlm",
        openers=("<|action_start|>{*}<|plugin|>",),
        variants=(Variant(PARAMETERS),),
        close="<|action_end|>",
        models="InternLM 2.5, 3",
    ),
    Format(
        "jamba",
        openers=("<tool_calls{:}>",),
        variants=(Variant(ARRAY),),
        close="</tool_calls{:}>",
        models="Jamba 1.5, 1.6",
    ),
    Format(
        "hunyuan_a13b",
        openers=("<tool_calls{:}>",),
        variants=(Variant(ARRAY),),
        close="</tool_calls{:}>",
        alias_of="jamba",
        models="Hunyuan A13B",
    ),
    Format(
        "minimax_m1",
        around="<tool_calls{:}>",
        openers=("<tool_calls{:}>",),
        variants=(Variant(Envelope()),),
        close="</tool_calls{:}>",
        models="MiniMax M1",
        about="Several calls stand in one block, a line each.",
    ),
    Format(
        "xlam",
        variants=(Variant(ARRAY),),
        models="xLAM",
        about="A bare array of calls; also in a code fence and after the openers of others.",
    ),
    Format(
        "phi4",
        openers=("functools",),
        variants=(Variant(ARRAY),),
        anchor=Anchor.LINE,
        lines=False,
        models="Phi-4 mini",
    ),
    Format(
        "nemotron",
        openers=("<TOOLCALL>",),
        variants=(Variant(ARRAY),),
        close="</TOOLCALL>",
        lines=False,
        models="Nemotron Nano 2, Llama Nemotron",
    ),
    Format(
        "pangu",
        openers=("[unused11]",),
        variants=(Variant(ARRAY),),
        close="[unused12]",
        sections=(Section("[unused16]", "[unused17]"),),
        stops=("[unused10]",),
        lines=False,
        models="openPangu Embedded",
        about="Later models write the markers of `lfm2`.",
    ),
    Format(
        "apertus",
        openers=("<|tools_prefix|>",),
        variants=(Variant(Envelope(array=True, keyed=True)),),
        close="<|tools_suffix|>",
        lines=False,
        models="Apertus",
        about="An object has one key, the name; its value is the arguments.",
    ),
    Format(
        "cohere",
        openers=("<|START_ACTION|>",),
        variants=(Variant(COHERE),),
        close="<|END_ACTION|>",
        sections=(
            Section("<|START_THINKING|>", "<|END_THINKING|>", anchor=Anchor.ANYWHERE),
            Section("<|START_RESPONSE|>", "<|END_RESPONSE|>", text=True, anchor=Anchor.ANYWHERE),
            Section("<|START_TEXT|>", "<|END_TEXT|>", text=True, anchor=Anchor.ANYWHERE),
            Section("<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>", text=True, anchor=Anchor.ANYWHERE),
        ),
        models="Command R7B, Command A",
    ),
    Format(
        "gigachat3",
        openers=("<|message_sep|>{*}function call<|role_sep|>", "<|function_call|>"),
        variants=(Variant(Envelope()),),
        models="GigaChat 3",
    ),
    Format(
        "harmony",
        variants=(
            Variant(
                MessageBody(
                    openers=("<|start|>assistant", "<|start|><|channel|>", "<|channel|>"),
                    begin="<|message|>",
                    recipient="to=",
                    channel="<|channel|>",
                    reasoning=("analysis", "self"),
                    text=("final", "commentary", "assistant", "user"),
                    written="<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json",
                    ends=("<|end|>", "<|return|>", "<|call|>", "<|eom|>", "<|eot|>"),
                    results=("<|start|>functions.",),
                    parameters=RFL,
                ),
            ),
        ),
        close="<|call|>",
        lines=False,
        models="gpt-oss, Beam",
        about="The header of a message says what it is: the channel `analysis` is reasoning, a recipient other than "
        "the user is a tool. Beam writes `<rfl:parameter name=…>` in place of the object.",
    ),
    Format(
        "longcat",
        openers=("<longcat_tool_call>",),
        variants=(
            Variant(Envelope()),
            Variant(
                Parameters(
                    key="<longcat_arg_key>",
                    key_rule=NameRule(ends=("</longcat_arg_key>{*}<longcat_arg_value>",)),
                    close="</longcat_arg_value>",
                ),
                NameRule(ends=("<longcat_arg_key>", "</longcat_tool_call>", "{")),
            ),
        ),
        close="</longcat_tool_call>",
        sections=(Section("<longcat_think>", "</longcat_think>"),),
        models="LongCat",
        about="The same marker also takes a name and marked keys, as in `glm45`.",
    ),
    Format(
        "functionary",
        variants=(Variant(MessageBody(openers=(">>>",), begin="\n", text=("all",), written=">>>{name}")),),
        lines=False,
        models="Functionary 3.2",
        about="`>>>all` begins text.",
    ),
    Format(
        "plamo3",
        wrappers=(("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),),
        around="<|plamo:begin_tool_requests:plamo|>",
        openers=("<|plamo:begin_tool_request:plamo|>{*}<|plamo:begin_tool_name:plamo|>",),
        variants=(
            Variant(
                Json(),
                NameRule(
                    ends=(
                        (
                            "<|plamo:end_tool_name:plamo|>{*}<|plamo:begin_tool_arguments:plamo|>{*}"
                            "<|plamo:constrain|>json<|plamo:msg|>"
                        ),
                        "<|plamo:end_tool_name:plamo|>{*}<|plamo:begin_tool_arguments:plamo|>{*}<|plamo:msg|>",
                    ),
                ),
            ),
        ),
        close="<|plamo:end_tool_arguments:plamo|>{*}<|plamo:end_tool_request:plamo|>",
        sections=(Section("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>", anchor=Anchor.ANYWHERE),),
        stops=("<|plamo:tag|>", "<|plamo:eot|>"),
        lines=False,
        models="PLaMo 3",
    ),
    Format(
        "ernie",
        openers=("<tool_call{:}>",),
        variants=(Variant(Envelope()),),
        close="</tool_call{:}>",
        sections=(Section("<response>", "</response>", text=True),),
        alias_of="tool_call",
        models="ERNIE 4.5, X1",
        about="Its text may stand in `<response>…</response>`; the calls are those of `tool_call`.",
    ),
    Format(
        "inkling",
        openers=("<|message_model|>{word}<|content_invoke_tool_json|>", "<|content_invoke_tool_json|>"),
        variants=(Variant(Envelope(arguments=("args", "arguments", "parameters"))),),
        close="<|end_message|>",
        sections=(
            Section("<|message_model|>{*}<|content_thinking|>", "<|end_message|>", anchor=Anchor.ANYWHERE),
            Section("<|content_thinking|>", "<|end_message|>", anchor=Anchor.ANYWHERE),
            Section("<|message_model|>{*}<|content_text|>", "<|end_message|>", text=True, anchor=Anchor.ANYWHERE),
            Section("<|content_text|>", "<|end_message|>", text=True, anchor=Anchor.ANYWHERE),
        ),
        stops=("<|content_model_end_sampling|>",),
        lines=False,
        models="Inkling",
        about="The name also stands between the two markers of the opener.",
    ),
    # ---- marked parameters
    Format(
        "qwen3_coder",
        wrappers=(("<tool_call{:}>", "</tool_call{:}>"),),
        around_each="<tool_call{:}>",
        openers=("<function=",),
        variants=(Variant(FUNCTION, NameRule()),),
        close="</function>",
        models="Qwen3-Coder, Qwen 3.5, Step 3.5, Nemotron 3",
        about="The outer tag may be missing. One line end on each side of a value is markup, the rest of the value is "
        "taken as it stands.",
    ),
    Format(
        "mimo",
        wrappers=(("<tool_call{:}>", "</tool_call{:}>"),),
        around_each="<tool_call{:}>",
        openers=("<function=",),
        variants=(Variant(VERBATIM, NameRule()),),
        close="</function>",
        alias_of="qwen3_coder",
        models="MiMo",
        about="As `qwen3_coder`, with values taken as they stand, their line ends included.",
    ),
    Format(
        "seed_oss",
        wrappers=(("<seed:tool_call>", "</seed:tool_call>"),),
        around_each="<seed:tool_call>",
        openers=("<function=",),
        variants=(Variant(VERBATIM, NameRule()),),
        close="</function>",
        sections=(Section("<seed:think>", "</seed:think>"),),
        models="Seed-OSS",
        about="Values are taken as they stand, their line ends included.",
    ),
    Format(
        "minimax_m2",
        wrappers=(("<minimax:tool_call>", "</minimax:tool_call>"),),
        around="<minimax:tool_call>",
        openers=("<{ns}invoke{ }",),
        variants=(Variant(INVOKE, INVOKE_NAME),),
        close="</{ns}invoke>",
        models="MiniMax M2",
        about="As `invoke`, in a wrapper of its own.",
    ),
    Format(
        "minimax_flags",
        wrappers=(("[TOOL_CALL]", "[/TOOL_CALL]"),),
        around_each="[TOOL_CALL]",
        openers=("{{*}tool{*}=>",),
        variants=(Variant(Expression(brackets="{}", assign=":", flag="--"), NameRule(ends=(",{*}args{*}=>",))),),
        close="}",
        lines=False,
        models="MiniMax M2 behind LM Studio and others",
        about="Behind a key stands a blank and its value, strings in quotes; a key without a value is true. A JSON "
        "object may stand in the place of the keys, or in the outer markers.",
    ),
    Format(
        "minimax_m3",
        wrappers=(("]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>"),),
        around="]<]minimax[>[<tool_call>",
        openers=("]<]minimax[>[<invoke{ }",),
        variants=(
            Variant(
                Parameters(key="]<]minimax[>[<{a}", key_rule=NameRule(), close="]<]minimax[>[</{key}>", item="item"),
                INVOKE_NAME,
            ),
        ),
        close="]<]minimax[>[</invoke>",
        sections=(Section("<mm:think>", "</mm:think>"),),
        lines=False,
        models="MiniMax M3",
        about="Each tag is preceded by `]<]minimax[>[`; elements in a value are an object, `item` elements an array. "
        "Elements of one name that follow one another in an object of which the schema says nothing are an array.",
    ),
    Format(
        "glm45",
        openers=("<tool_call{:}>",),
        variants=(Variant(ARG_KEYS, GLM_NAME),),
        close="</tool_call{:}>",
        sections=(Section("<role>ASSISTANT</role>", "<|role_end|>", text=True),),
        models="GLM 4.5, GLM 4.6, Ling 3",
        about="One JSON object may follow the name; the word `function`, on a line before the name, says nothing.",
    ),
    Format(
        "glm47",
        openers=("<tool_call{:}>",),
        variants=(Variant(ARG_KEYS, GLM_NAME),),
        close="</tool_call{:}>",
        lines=False,
        alias_of="glm45",
        models="GLM 4.7, GLM 5",
        about="As `glm45`, without line ends.",
    ),
    Format(
        "iquest",
        openers=("<iquest_tool_call>",),
        variants=(Variant(ARG_KEYS, NameRule(ends=("<arg_key{:}>", "</iquest_tool_call>", "{"))),),
        close="</iquest_tool_call>",
        models="IQuest Q1",
        about="The body of `glm45` in tags of its own.",
    ),
    Format(
        "hunyuan_v3",
        wrappers=(("<tool_calls{:}>", "</tool_calls{:}>"),),
        around="<tool_calls{:}>",
        openers=("<tool_call{:}>",),
        variants=(Variant(ARG_KEYS, NameRule(ends=("<tool_sep{:}>", "<arg_key{:}>", "</tool_call{:}>", "{"))),),
        close="</tool_call{:}>",
        models="Hunyuan 3, 4",
        about="Version 4 writes no `<tool_sep>`; each tag may carry a `:suffix`.",
    ),
    Format(
        "deepseek_v32",
        wrappers=(
            ("<{|}DSML{|}function_calls>", "</{|}DSML{|}function_calls>"),
            ("<{|}DSML{|}tool_calls>", "</{|}DSML{|}tool_calls>"),
            ("<{|}DSML{|} calls>", "</{|}DSML{|} calls>"),
        ),
        around="<{|}DSML{|}function_calls>",
        openers=("<{|}DSML{|}invoke{ }",),
        variants=(
            Variant(
                Parameters(
                    key="<{|}DSML{|}parameter{ }",
                    key_rule=NameRule(attribute="name"),
                    close="</{|}DSML{|}parameter>",
                    type_attribute="string",
                    whole="arguments",
                ),
                INVOKE_NAME,
            ),
        ),
        close="</{|}DSML{|}invoke>",
        models="DeepSeek V3.2, V4",
        about='`string="true"` says that a value is raw text, `string="false"` that it is JSON. The bars may be plain, '
        "double (`‖`) or two each; a parameter `arguments` that the tool does not have may hold all arguments.",
    ),
    Format(
        "deepseek_v41",
        wrappers=(("<{|}DSML{|} calls>", "</{|}DSML{|} calls>"),),
        around="<{|}DSML{|} calls>",
        openers=("<{|}DSML{|} invoke{ }",),
        variants=(
            Variant(
                Parameters(
                    key="<{|}DSML{|} parameter{ }",
                    key_rule=NameRule(attribute="name"),
                    close="</{|}DSML{|} parameter>",
                    type_attribute="string",
                    whole="arguments",
                ),
                INVOKE_NAME,
            ),
        ),
        close="</{|}DSML{|} invoke>",
        models="DeepSeek V4.1",
        about="As `deepseek_v32`, with a blank in each tag.",
    ),
    Format(
        "gigachat35",
        wrappers=(
            ("<｜GCML｜function_calls>", "</｜GCML｜function_calls>"),
            ("<｜GCML｜tool_calls>", "</｜GCML｜tool_calls>"),
        ),
        around="<｜GCML｜function_calls>",
        openers=("<｜GCML｜invoke{ }",),
        variants=(
            Variant(
                Parameters(
                    key="<｜GCML｜parameter{ }",
                    key_rule=NameRule(attribute="name"),
                    close="</｜GCML｜parameter>",
                    type_attribute="string",
                ),
                INVOKE_NAME,
            ),
        ),
        close="</｜GCML｜invoke>",
        models="GigaChat 3.5",
        about="As `deepseek_v32` with another prefix.",
    ),
    Format(
        "step3",
        wrappers=(
            ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
            ("<｜tool_call_begin｜>", "<｜tool_call_end｜>"),
        ),
        around="<｜tool_calls_begin｜>",
        around_each="<｜tool_call_begin｜>",
        openers=("function<｜tool_sep｜>{*}<steptml:invoke{ }", "<steptml:invoke{ }"),
        variants=(
            Variant(
                Parameters(
                    key="<steptml:parameter{ }", key_rule=NameRule(attribute="name"), close="</steptml:parameter>"
                ),
                INVOKE_NAME,
            ),
        ),
        close="</steptml:invoke>",
        lines=False,
        models="Step 3",
    ),
    Format(
        "dots",
        wrappers=(("<dots_function_call>", "</dots_function_call>"),),
        around="<dots_function_call>",
        openers=("<{ns}invoke{ }",),
        variants=(Variant(INVOKE, INVOKE_NAME),),
        close="</{ns}invoke>",
        models="dots.llm",
        about="A JSON object may stand in the wrapper or in the tag.",
    ),
    Format(
        "minicpm5",
        wrappers=(("<tool_call{:}>", "</tool_call{:}>"),),
        openers=("<function{ }", "<functionname="),
        variants=(
            Variant(
                Parameters(
                    key="<param{ }",
                    key_rule=NameRule(attribute="name"),
                    close="</param>",
                    other_keys=(("<parameter{ }", "</parameter>"), ("<paramname=", "</param>")),
                    wrappers=(("<arguments>", "</arguments>"),),
                    quote=("<![CDATA[", "]]>"),
                    whole="properties",
                ),
                INVOKE_NAME,
            ),
        ),
        close="</function>",
        lines=False,
        models="MiniCPM 5",
        about="`<tool_call>` may stand around a call, `<arguments>` around its parameters, `<parameter>` in place of "
        "`<param>`; a parameter `properties` that the tool does not have may hold all arguments.",
    ),
    Format(
        "kimi_k3",
        wrappers=(("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),),
        around="<|open|>tools<|sep|>",
        openers=("<|open|>call{ }",),
        variants=(
            Variant(
                Parameters(
                    key="<|open|>argument{ }",
                    key_rule=NameRule(ends=("<|sep|>",), attribute="key"),
                    close="<|close|>argument<|sep|>",
                    wrappers=(
                        ('<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"),
                        ("<|open|>json<|sep|>", "<|close|>json<|sep|>"),
                    ),
                    type_attribute="type",
                ),
                NameRule(ends=("<|sep|>",), attribute="tool", ignored_words=("index",)),
            ),
        ),
        close="<|close|>call<|sep|>",
        sections=(
            Section("<|open|>think<|sep|>", "<|close|>think<|sep|>", anchor=Anchor.ANYWHERE),
            Section("<|open|>response<|sep|>", "<|close|>response<|sep|>", text=True, anchor=Anchor.ANYWHERE),
            Section(
                '<|open|>message role="assistant"<|sep|>',
                "<|close|>message<|sep|>",
                text=True,
                anchor=Anchor.ANYWHERE,
            ),
        ),
        lines=False,
        models="Kimi K3",
        about="One JSON object of all arguments may stand in `json`.",
    ),
    Format(
        "muse",
        wrappers=(("<atem:function_calls>", "</atem:function_calls>"),),
        around="<atem:function_calls>",
        openers=("<atem:invoke{ }",),
        variants=(
            Variant(
                Parameters(key="<atem:parameter{ }", key_rule=NameRule(attribute="name"), close="</atem:parameter>"),
                NameRule(ends=(">", "/>"), attribute="name", spelling="{name}.{name}"),
            ),
            Variant(
                MessageBody(
                    openers=("<|start|>assistant",),
                    begin="<|message|>",
                    recipient="to=",
                    reasoning=("self",),
                    text=("user",),
                    ends=("<|eom|>", "<|eot|>"),
                ),
            ),
        ),
        close="</atem:invoke>",
        sections=(
            Section("to=self<|message|>", "<|eom|>"),
            Section("to=user<|message|>", "<|eot|>", text=True),
        ),
        models="Muse",
    ),
    Format(
        "k2_horizon",
        wrappers=(("<ifm|tool_calls>", "</ifm|tool_calls>"),),
        around="<ifm|tool_calls>",
        openers=("<ifm|tool_call>",),
        variants=(
            Variant(
                Parameters(
                    key="<ifm|arg_key>",
                    key_rule=NameRule(ends=("</ifm|arg_key>{*}<ifm|arg_value>",)),
                    close="</ifm|arg_value>",
                    type_marks=("</ifm|arg_key>{*}<ifm|arg_type>", "</ifm|arg_type>{*}<ifm|arg_value>"),
                ),
                NameRule(ends=("<ifm|arg_key>", "</ifm|tool_call>", "{")),
            ),
            Variant(Envelope()),
        ),
        close="</ifm|tool_call>",
        sections=(
            Section("<ifm|think>", "</ifm|think>", alone=True),
            Section("<ifm|think_fast>", "</ifm|think_fast>", alone=True),
            Section("<ifm|think_faster>", "</ifm|think_faster>", alone=True),
        ),
        lines=False,
        models="K2 Horizon",
        about="A JSON object may stand in the same tags.",
    ),
    Format(
        "tag",
        openers=("<{tool}>",),
        variants=(Variant(Parameters(key="<{a}", key_rule=NameRule(), close="</{key}>", trim=True)),),
        close="</{tool}>",
        models="Cline, Roo",
        about="The tag is the name of an offered tool, so it works only when the tools are known.",
    ),
    # ---- call expressions
    Format(
        "pythonic",
        openers=("<|python_start|>",),
        variants=(Variant(Expression(array=True, bare=True)), Variant(PARAMETERS)),
        close="<|python_end|>",
        lines=False,
        models="Llama 3.2, Llama 4, ToolACE",
        about="Without the markers, the list counts only at the start of a reply, and only if its first call has a "
        "keyword or no arguments.",
    ),
    Format(
        "olmo3",
        around="<{ns}function_calls>",
        openers=("<{ns}function_calls>",),
        variants=(Variant(Expression()),),
        close="</{ns}function_calls>",
        models="OLMo 3",
        about="Several calls stand in one block, a line each.",
    ),
    Format(
        "lfm2",
        openers=("<|tool_call_start|>",),
        variants=(Variant(Expression(array=True)), Variant(ARRAY)),
        close="<|tool_call_end|>",
        lines=False,
        models="LFM2",
        about="A JSON array of calls may stand inside.",
    ),
    Format(
        "gemma4",
        openers=("<|tool_call>{*}call:",),
        variants=(Variant(Expression(brackets="{}", other_brackets="()", assign=":", quote='<|"|>')),),
        close="<tool_call|>",
        sections=(
            Section("<|channel>thought", "<channel|>", anchor=Anchor.ANYWHERE),
            Section("<|channel>{*}<|channel>thought", "<channel|>", anchor=Anchor.ANYWHERE),
        ),
        lines=False,
        models="Gemma 4",
    ),
    Format(
        "functiongemma",
        openers=("<start_function_call>{*}call:",),
        variants=(Variant(Expression(brackets="{}", other_brackets="()", assign=":", quote="<escape>")),),
        close="<end_function_call>",
        lines=False,
        models="FunctionGemma",
    ),
    Format(
        "tool_code",
        variants=(Variant(Expression()),),
        fence=("tool_code",),
        models="Gemma 2, Gemma 3",
        about="A fence with this info string and any other content is text.",
    ),
)

FORMATS: Mapping[str, Format] = MappingProxyType({row.name: row for row in TABLE})

OPT_IN = frozenset({"tag", "action_object", "functionary", "ernie"})
"""Off unless taught or chosen by name: their markers occur in honest answers."""

DEFAULT = tuple(name for name in FORMATS if name not in OPT_IN)

REASONING = (
    Section("<think>", "</think>", alone=True),
    Section("<thinking>", "</thinking>", alone=True),
    Section("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
    Section("<|im_start|>assistant", "<|im_end|>", text=True),
)
"""Reasoning, and turns of a conversation, that no format claims for itself."""

check(dict(FORMATS))
