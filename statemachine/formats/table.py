"""Table of all known formats, a few lines each. To add one, add a row and `tests/formats/<name>.md`.

`format.py` defines the fields; `docs/reference/formats.md` describes the grammar of each format, with examples.
"""

from collections.abc import Mapping
from types import MappingProxyType

from attrs import evolve

from statemachine.formats.format import (
    Anchor,
    Envelope,
    Expression,
    Format,
    JsonBody,
    MessageBody,
    NameRule,
    Parameters,
    Section,
    Variant,
    check_formats,
)

CALLED = Envelope(name=("tool", "name", "function", "tool_name", "action"))
PARAMETERS = Envelope(arguments=("parameters", "arguments", "params", "args", "input", "tool_input", "action_input"))
ACTION = Envelope(name=CALLED.name, arguments=PARAMETERS.arguments)
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
    foreign_keys=("<parameter=",),
    wrappers=(("<{ns}parameter_list>", "</{ns}parameter_list>"),),
)
INVOKE_NAME = NameRule(ends=(">", "/>"), attribute="name")
VERBATIM = Parameters(key="<parameter=", key_rule=NameRule(), close="</parameter>", foreign_keys=("<parameter{ }",))
FUNCTION = evolve(VERBATIM, trim=True)
ARG_KEYS = Parameters(
    key="<arg_key{:}>", key_rule=NameRule(ends=("</arg_key{:}>{*}<arg_value{:}>",)), close="</arg_value{:}>"
)

GLM_NAME = NameRule(ends=("<arg_key{:}>", "</tool_call{:}>", "{"), ignored_words=("function",))

DSML_ESCAPES = tuple(
    f"<{slash}{text}"
    for slash in ("", "/")
    for text in ("\u200b{|}DSML{|}", "{|}\u200bDSML{|}", "{|}DSML\u200b{|}", "{|}DSML{|}\u200b")
)
RFL = Parameters(key="<rfl:parameter{ }", key_rule=NameRule(attribute="name"), close="</rfl:parameter>", trim=True)
TABLE = (
    # ---- taught to models without native tools
    Format(
        "tool_call",
        openers=("<tool_call{:}>",),
        variants=(Variant(Envelope()),),
        close="</tool_call{:}>",
        models="Hermes, Qwen 2.5, Qwen 3, Granite 4, K-EXAONE, MiMo-VL, Reka Edge, Bielik 3",
        about="There may be several blocks in a row, a block may contain an array of calls or several calls, the last "
        "block may lack its closer, and a call without arguments has `{}`.",
    ),
    Format(
        "labelled",
        openers=("TOOL_CALL{_}:{_}",),
        variants=(Variant(JsonBody(), NameRule(ends=("ARGUMENTS{_}:",))), Variant(ACTION)),
        anchor=Anchor.LINE,
        about="Letter case and blanks around the colons are ignored. There may be several pairs in a row.",
    ),
    Format(
        "invoke",
        wrappers=(("<tool_calls{:}>", "</tool_calls{:}>"), ("<{ns}function_calls>", "</{ns}function_calls>")),
        openers=("<{ns}invoke{ }",),
        variants=(Variant(INVOKE, INVOKE_NAME),),
        close="</{ns}invoke>",
        models="Claude; taught by default",
        about="`<function_calls>` or `<tool_calls>` may enclose the calls, and `<parameter_list>` the parameters; any "
        "tag may have a namespace prefix; quotes may be double, single or missing. The attribute style, `<invoke "
        'name="f" city="Paris"/>`, is accepted too. Values are taken verbatim, including their newlines.',
    ),
    Format(
        "grok",
        wrappers=(("<{ns}function_calls>", "</{ns}function_calls>"),),
        openers=("<xai:function_call{ }",),
        variants=(Variant(INVOKE, INVOKE_NAME),),
        close="</xai:function_call{'}{_}>",
        models="Grok",
        about="Like `invoke`, in a different tag, whose closer may contain a stray quote.",
    ),
    Format(
        "continue",
        openers=("TOOL_NAME:{_}",),
        variants=(
            Variant(
                Parameters(key="BEGIN_ARG:{_}", key_rule=NameRule(ends=("\n", "\r\n")), close="END_ARG", trim=True),
                NameRule(ends=("BEGIN_ARG:{_}", "```", "{")),
            ),
        ),
        close="```",
        anchor=Anchor.LINE,
        fence=("tool",),
        models="taught by Continue",
        about="Labels on separate lines, usually in a code fence.",
    ),
    Format(
        "fenced",
        variants=(Variant(CALLED),),
        fence=("json action", "tool_call", "tool_use", "tool_code"),
        about="The info string may be one of those listed, `json`, or missing. A fence that turns out not to contain "
        "a call is part of the answer: it is emitted as text, including its delimiters.",
    ),
    Format(
        "object",
        variants=(Variant(CALLED),),
        about="It has no marker, so an object counts as a call only once its name and its arguments key have been "
        "read. An object that is not a call is text through its closing brace, and calls inside it are ignored.",
    ),
    Format(
        "openai_fragment",
        openers=('"tool_calls"{*}:',),
        variants=(Variant(Envelope(calls="tool_calls", written_nest="function", array=True, as_string=True)),),
        anchor=Anchor.LINE,
        about="The enclosing braces are optional. The arguments are a JSON string.",
    ),
    Format(
        "command",
        openers=("@",),
        variants=(Variant(JsonBody(), NameRule(ends=("{",), one_line=True, ignored_words=("tool",))),),
        anchor=Anchor.LINE,
        about="`@tool f {…}` is accepted too. Mentions and email addresses are text, unless they name an offered tool.",
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
        about='A strict protocol in which the entire reply is one object: a call, or `{"final": {"content": …}}`, '
        "whose content is the visible text and is decoded as it streams. The thought is emitted as reasoning.",
    ),
    Format(
        "react",
        openers=("Action{_}:{_}",),
        variants=(Variant(JsonBody(), NameRule(ends=("Action Input{_}:",))), Variant(ACTION)),
        anchor=Anchor.LINE,
        about="`Thought:` lines before a call are text. An `Observation:` that the model writes after a call is "
        "invented and does not count as a result.",
    ),
    Format(
        "ui_tars",
        openers=("Action{_}:{_}",),
        variants=(Variant(Expression()),),
        anchor=Anchor.LINE,
        models="UI-TARS",
        about="Like `react`, but the action is a call expression. `Thought:` lines are text.",
    ),
    Format(
        "calling_tool",
        openers=("[Calling tool:{_}",),
        variants=(Variant(JsonBody(), NameRule(ends=("(",))),),
        close=")]",
        anchor=Anchor.LINE,
        lines=False,
        about="The wording that some servers use for past calls, which models repeat.",
    ),
    # ---- JSON arguments, native to models
    Format(
        "rwkv",
        openers=("**Tool Call:**", "**Tool Call**:", "**Tool Calls:**", "**Tool Calls**:"),
        variants=(Variant(Envelope()),),
        anchor=Anchor.LINE,
        body_fence="json",
        models="RWKV 7",
        about="The object is in a code fence.",
    ),
    Format(
        "cwm",
        openers=("<tool:{_}",),
        variants=(Variant(JsonBody(text="command"), NameRule(ends=(">",))),),
        close="</tool>",
        models="CWM",
        about="The content may also be plain text, the value of the only parameter; if the parameters of the tool are "
        "unknown, of `command`.",
    ),
    Format(
        "lm_studio",
        openers=("[TOOL_REQUEST]",),
        variants=(Variant(Envelope()),),
        close="[END_TOOL_REQUEST]",
        lines=False,
        models="models without native tools in LM Studio",
    ),
    Format(
        "function_call",
        wrappers=(("<tools>", "</tools>"), ("<tool>", "</tool>"), ("<function>", "</function>")),
        openers=("<function-call>",),
        variants=(Variant(Envelope(by_keys=True)),),
        close="</function-call>",
        models="Qwen 2.5 Coder",
        about="`<tools>`, `<tool>` and `<function>` may replace the tag. Since they may also enclose a list of "
        "tools, an object inside them counts as a call only once its name and its arguments key have been read.",
    ),
    Format(
        "hyperclova",
        openers=("-> tool/function_call",),
        variants=(Variant(ARRAY),),
        close="<|im_end|>",
        closed=False,
        anchor=Anchor.LINE,
        stops=("<|endofturn|>", "<|stop|>"),
        models="HyperCLOVA X",
    ),
    Format(
        "llama3",
        openers=("<|python_tag|>",),
        variants=(Variant(PARAMETERS),),
        lines=False,
        models="Llama 3.1, 3.2, 3.3",
        about="A bare object at the start of the reply is read as `object`, and `<function=f>{…}</function>` as "
        "`qwen3_coder`. Calls may be separated by semicolons.",
    ),
    Format(
        "mistral",
        openers=("[TOOL_CALLS]",),
        variants=(Variant(ARRAY), Variant(JsonBody(), NameRule(ends=("[ARGS]", "{"), id="[CALL_ID]"))),
        close="[/TOOL_CALLS]",
        closed=False,
        sections=(Section("[THINK]", "[/THINK]"),),
        stops=("</s>",),
        models="Mistral, Ministral, Devstral, Magistral",
        about="Newer models write `[TOOL_CALLS]f[ARGS]{…}` once per call, sometimes with `[CALL_ID]…` before `[ARGS]`.",
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
        variants=(Variant(JsonBody(), NameRule(ends=("```json",))),),
        close="```",
        lines=False,
        models="DeepSeek V3, R1",
    ),
    Format(
        "deepseek_v31",
        wrappers=(("<{|}tool▁calls▁begin{|}>", "<{|}tool▁calls▁end{|}>"),),
        around="<{|}tool▁calls▁begin{|}>",
        openers=("<{|}tool▁call▁begin{|}>",),
        variants=(Variant(JsonBody(), NameRule(ends=("<{|}tool▁sep{|}>", "<{|}tool▁call▁end{|}>"))),),
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
        only_calls=True,
        openers=("<|tool_call_begin|>",),
        bare_openers=("functions.{a}",),
        variants=(
            Variant(
                JsonBody(),
                NameRule(
                    ends=("<|tool_call_argument_begin|>", "<|tool_call_end|>"), spelling="functions.{name}:{index}"
                ),
            ),
        ),
        close="<|tool_call_end|>",
        lines=False,
        models="Kimi K2",
        about="The name is part of the call's id.",
    ),
    Format(
        "solar",
        wrappers=(("<|begin|>assistant{*}<|tool_calls|>", "<|calls|>"), ("<|tool_calls|>", "<|calls|>")),
        around="<|tool_calls|>",
        openers=("<|tool_call:begin|>",),
        variants=(
            Variant(
                JsonBody(),
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
        about="The call's id precedes the name.",
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
        about="Granite 4 uses `tool_call`.",
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
        stops=("<|eos|>",),
        models="Hunyuan A13B",
    ),
    Format(
        "minimax_m1",
        around="<tool_calls{:}>",
        openers=("<tool_calls{:}>",),
        variants=(Variant(Envelope()),),
        close="</tool_calls{:}>",
        models="MiniMax M1",
        about="One block can contain several calls, one per line.",
    ),
    Format(
        "xlam",
        variants=(Variant(ARRAY),),
        models="xLAM",
        about="A bare array of calls. It is also read in a code fence, and after the openers of other formats.",
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
        about="Later models use the markers of `lfm2`.",
    ),
    Format(
        "apertus",
        openers=("<|tools_prefix|>",),
        variants=(Variant(Envelope(array=True, keyed=True)),),
        close="<|tools_suffix|>",
        stops=("<|assistant_end|>",),
        lines=False,
        models="Apertus",
        about="Each object has a single key, the name of the tool; its value is the arguments.",
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
                    built_in=("python", "browser", "container"),
                ),
            ),
        ),
        close="<|call|>",
        lines=False,
        models="gpt-oss, Beam",
        about="The header of a message determines its kind: a message on the `analysis` channel is reasoning, and a "
        "message to any recipient other than the user is a call to the tool named as the recipient. Beam writes "
        "`<rfl:parameter name=…>` instead of the JSON object.",
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
        stops=("</longcat_s>",),
        models="LongCat",
        about="A name and marked keys, as in `glm45`, may also follow the opener.",
    ),
    Format(
        "functionary",
        variants=(Variant(MessageBody(openers=(">>>",), begin="\n", text=("all",), written=">>>{name}")),),
        lines=False,
        models="Functionary 3.2",
        about="`>>>all` begins text.",
    ),
    Format(
        "functionary_v2",
        variants=(
            Variant(
                MessageBody(
                    openers=(
                        "<|from|>assistant\n<|recipient|>",
                        "<|from|> assistant\n<|recipient|>",
                        "<|recipient|>",
                    ),
                    begin="<|content|>",
                    text=("all",),
                    written="<|from|>assistant\n<|recipient|>{name}\n",
                    ends=("<|stop|>",),
                ),
            ),
        ),
        close="<|stop|>",
        sections=(Section("all{*}<|content|>", "<|stop|>", text=True),),
        lines=False,
        models="Functionary 2",
        about="`<|recipient|>all` begins text.",
    ),
    Format(
        "plamo3",
        wrappers=(("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),),
        around="<|plamo:begin_tool_requests:plamo|>",
        openers=("<|plamo:begin_tool_request:plamo|>{*}<|plamo:begin_tool_name:plamo|>",),
        variants=(
            Variant(
                JsonBody(),
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
        about="Text may be enclosed in `<response>…</response>`; calls are written as in `tool_call`.",
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
        about="The name also appears between the two markers of the opener.",
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
        about="The outer tag may be missing. One newline on each side of a value is markup; the rest of the value is "
        "taken verbatim.",
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
        about="Like `qwen3_coder`, but values are taken verbatim, including their newlines.",
    ),
    Format(
        "seed_oss",
        wrappers=(("<seed:tool_call>", "</seed:tool_call>"),),
        around_each="<seed:tool_call>",
        openers=("<function=",),
        variants=(Variant(VERBATIM, NameRule()),),
        close="</function>",
        sections=(Section("<seed:think>", "</seed:think>"),),
        stops=("<seed:eos>",),
        models="Seed-OSS",
        about="Values are taken verbatim, including their newlines.",
    ),
    Format(
        "minimax_m2",
        wrappers=(("<minimax:tool_call>", "</minimax:tool_call>"),),
        around="<minimax:tool_call>",
        openers=("<{ns}invoke{ }",),
        variants=(Variant(INVOKE, INVOKE_NAME),),
        close="</{ns}invoke>",
        models="MiniMax M2",
        about="Like `invoke`, but in a different wrapper.",
    ),
    Format(
        "minimax_flags",
        wrappers=(("[TOOL_CALL]", "[/TOOL_CALL]"),),
        around_each="[TOOL_CALL]",
        openers=("{{*}tool{*}=>",),
        variants=(Variant(Expression(brackets="{}", assign=":", flag="--"), NameRule(ends=(",{*}args{*}=>",))),),
        close="}",
        lines=False,
        models="MiniMax M2 via LM Studio and others",
        about="A key is followed by a blank and its value. Strings are in quotes, and a key without a value is true. "
        "A JSON object may replace the keys, or the content of the outer markers.",
    ),
    Format(
        "minimax_m3",
        wrappers=(("]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>"),),
        around="]<]minimax[>[<tool_call>",
        openers=("]<]minimax[>[<invoke{ }", "]<]minimax[>[invoke{ }"),
        variants=(
            Variant(
                Parameters(key="]<]minimax[>[<{k}", key_rule=NameRule(), close="]<]minimax[>[</{key}>", item="item"),
                INVOKE_NAME,
            ),
        ),
        close="]<]minimax[>[</invoke>",
        sections=(Section("<mm:think>", "</mm:think>"),),
        lines=False,
        models="MiniMax M3",
        about="Each tag is preceded by `]<]minimax[>[`. Elements inside a value form an object, and `item` elements "
        "form an array. In an object that the schema does not describe, consecutive elements with the same name form "
        "an array.",
    ),
    Format(
        "minimax_m3_plain",
        wrappers=(("<tool_call{:}>", "</tool_call{:}>"),),
        around="<tool_call{:}>",
        openers=("<{ns}invoke{ }",),
        variants=(
            Variant(Parameters(key="<{k}", key_rule=NameRule(), close="</{key}>", item="item"), INVOKE_NAME),
            Variant(INVOKE, INVOKE_NAME),
        ),
        close="</{ns}invoke>",
        models="MiniMax M3 on servers that remove its tokens",
        about="Like `minimax_m3`, without `]<]minimax[>[`.",
    ),
    Format(
        "glm45",
        openers=("<tool_call{:}>",),
        variants=(Variant(ARG_KEYS, GLM_NAME),),
        close="</tool_call{:}>",
        sections=(Section("<role>ASSISTANT</role>", "<|role_end|>", text=True),),
        models="GLM 4.5, GLM 4.6, Ling 3, Step-Audio 2",
        about="One JSON object may follow the name. The word `function` on a line before the name is ignored.",
    ),
    Format(
        "glm47",
        openers=("<tool_call{:}>",),
        variants=(Variant(ARG_KEYS, GLM_NAME),),
        close="</tool_call{:}>",
        lines=False,
        alias_of="glm45",
        models="GLM 4.7, GLM 5, Spark 3",
        about="Like `glm45`, without newlines.",
    ),
    Format(
        "iquest",
        openers=("<iquest_tool_call>",),
        variants=(
            Variant(ARG_KEYS, NameRule(ends=("<arg_key{:}>", "</iquest_tool_call>", "{"))),
            Variant(Envelope()),
        ),
        close="</iquest_tool_call>",
        models="IQuest Q1",
        about="The same body as in `glm45`, in different tags.",
    ),
    Format(
        "iquest_coder",
        openers=("<iquestcoder_tool_call>",),
        variants=(
            Variant(ARG_KEYS, NameRule(ends=("<arg_key{:}>", "</iquestcoder_tool_call>", "{"))),
            Variant(Envelope()),
        ),
        close="</iquestcoder_tool_call>",
        models="IQuest-Coder 2",
        about="The same body as in `glm45`, in different tags.",
    ),
    Format(
        "telechat",
        openers=("<tool_call{:}>",),
        variants=(
            Variant(
                Parameters(
                    key="<param_key>",
                    key_rule=NameRule(ends=("</param_key>{*}<param_value>",)),
                    close="</param_value>",
                ),
                NameRule(ends=("<param_key>", "</tool_call{:}>", "{")),
            ),
        ),
        close="</tool_call{:}>",
        lines=False,
        models="TeleChat 4",
        about="Like `glm47`, with other tags for keys and values.",
    ),
    Format(
        "hunyuan_v3",
        wrappers=(("<tool_calls{:}>", "</tool_calls{:}>"),),
        around="<tool_calls{:}>",
        openers=("<tool_call{:}>",),
        variants=(Variant(ARG_KEYS, NameRule(ends=("<tool_sep{:}>", "<arg_key{:}>", "</tool_call{:}>", "{"))),),
        close="</tool_call{:}>",
        models="Hunyuan 3, 4",
        about="Version 4 omits `<tool_sep>`. Each tag may have a `:suffix`.",
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
                    escapes=DSML_ESCAPES,
                ),
                INVOKE_NAME,
            ),
        ),
        close="</{|}DSML{|}invoke>",
        models="DeepSeek V3.2, V4",
        about='`string="true"` marks a value as raw text, `string="false"` as JSON. Each bar may be plain, double '
        "(`‖`) or written twice. A zero-width space in a marker shows that it is text.",
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
                    escapes=DSML_ESCAPES,
                ),
                INVOKE_NAME,
            ),
        ),
        close="</{|}DSML{|} invoke>",
        models="DeepSeek V4.1",
        about="Like `deepseek_v32`, with a blank in each tag.",
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
        about="Like `deepseek_v32`, with another prefix.",
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
        stops=("<|EOT|>",),
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
        stops=("<|endofresponse|>",),
        models="dots.llm",
        about="The wrapper or the tag may contain a JSON object.",
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
                    foreign_keys=("<parameter=",),
                    wrappers=(("<arguments>", "</arguments>"),),
                    quote=("<![CDATA[", "]]>"),
                ),
                INVOKE_NAME,
            ),
        ),
        close="</function>",
        lines=False,
        models="MiniCPM 5",
        about="`<tool_call>` may enclose a call, `<arguments>` may enclose its parameters, and `<parameter>` may "
        "replace `<param>`.",
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
        stops=("<|end_of_msg|>",),
        lines=False,
        models="Kimi K3",
        about="A `json` block may contain all arguments as one JSON object.",
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
        about="The same tags may also contain a JSON object.",
    ),
    Format(
        "tag",
        openers=("<{tool}>", "<{tool}{_}/>"),
        variants=(Variant(Parameters(key="<{k}", key_rule=NameRule(), close="</{key}>", trim=True)),),
        close="</{tool}>",
        models="Cline, Roo",
        about="The tag is the name of an offered tool, so this format works only if the tools are known.",
    ),
    # ---- call expressions
    Format(
        "pythonic",
        openers=("<|python_start|>",),
        variants=(Variant(Expression(array=True, bare=True)), Variant(PARAMETERS)),
        close="<|python_end|>",
        lines=False,
        models="Llama 3.2, Llama 4, ToolACE",
        about="Without the markers, the list is recognized only at the start of a reply, and only if its first call "
        "has a keyword argument or no arguments.",
    ),
    Format(
        "bare_call",
        openers=("{tool}(",),
        variants=(Variant(Expression()),),
        anchor=Anchor.REPLY,
        about="Calls that begin a reply, separated by newlines, semicolons or commas, with keyword arguments, literals "
        "or nothing in their brackets. A call without arguments must end its line; text may follow the others, whose "
        "arguments have been sent by then.",
    ),
    Format(
        "olmo3",
        around="<{ns}function_calls>",
        openers=("<{ns}function_calls>",),
        variants=(Variant(Expression()),),
        close="</{ns}function_calls>",
        models="OLMo 3",
        about="One block can contain several calls, one per line.",
    ),
    Format(
        "lfm2",
        openers=("<|tool_call_start|>",),
        variants=(Variant(Expression(array=True)), Variant(ARRAY)),
        close="<|tool_call_end|>",
        lines=False,
        models="LFM2, openPangu 2",
        about="The markers may also enclose a JSON array of calls.",
    ),
    Format(
        "gemma4",
        openers=("<|tool_call>{*}call:",),
        variants=(Variant(Expression(brackets="{}", other_brackets="()", assign=":", quote='<|"|>')),),
        close="<tool_call|>",
        results=(("<|tool_response>", "<tool_response|>"),),
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
        results=(("<start_function_response>", "<end_function_response>"),),
        lines=False,
        models="FunctionGemma",
    ),
    Format(
        "tool_code",
        variants=(Variant(Expression()),),
        fence=("tool_code",),
        models="Gemma 2, Gemma 3",
        about="A fence with this info string is text if it contains anything but calls.",
    ),
)

FORMATS: Mapping[str, Format] = MappingProxyType({row.name: row for row in TABLE})

OPT_IN = frozenset({"tag", "bare_call", "action_object", "functionary", "ernie"})
"""Formats that are disabled unless they are taught or chosen by name, because their markers occur in ordinary
answers.
"""

DEFAULT = tuple(name for name in FORMATS if name not in OPT_IN)

REASONING = (
    Section("<think>", "</think>", alone=True),
    Section("<thinking>", "</thinking>", alone=True),
    Section("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
    Section("<|im_start|>assistant", "<|im_end|>", text=True),
)
"""Reasoning sections and conversation turns that belong to no particular format."""
STOPS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eom|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<|end_of_sentence|>",
    "[|endofturn|]",
    "<|eot|>",
    "<|return|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|role_end|>",
    "<|user|>",
    "<|observation|>",
    "<|/tool_call|>",
    "<|tool_response>",
    "<start_function_response>",
    "<end_of_turn>",
    "<turn|>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "[e~[",
    "</s>",
)
"""Special tokens that end a turn, which servers sometimes leave at the end of a reply."""
HEADERS = (
    "<|im_start|>",
    "<|start_header_id|>",
    "<|header_start|>",
    "<start_of_turn>",
    "<|turn>",
    "<|start_of_role|>",
    "<|start|>",
    "<|begin|>",
    "<seed:bos>",
    "]~b]",
)
"""Special tokens that a role follows at the beginning of a turn."""
TURNS = (
    *(header + role for header in HEADERS for role in ("user", "system", "tool")),
    "<|start_header_id|>ipython",
    "<|im_user|>",
    "<|im_system|>",
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
    "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>",
    "<|user_start|>",
    "<|user|>",
    "<|system|>",
    "<|observation|>",
    "<｜User｜>",
    "[|user|]",
    "[|system|]",
    "[INST]",
)
"""Beginnings of turns of others."""
OWN_TURNS = (
    *(header + role for header in HEADERS[:5] for role in ("assistant", "model")),
    "<|start_of_role|>assistant",
    "<seed:bos>assistant",
    "]~b]ai",
    "<|im_assistant|>",
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "<|assistant_start|>",
    "<|assistant|>",
    "<｜Assistant｜>",
    "[|assistant|]",
)
"""Beginnings of turns of the model. Formats whose replies consist of several messages are not among them."""
SHOWN_TURNS = (
    "<|im_start|>user",
    "<|im_start|>system",
    "<|im_start|>assistant",
    "<|start_header_id|>",
    "<start_of_turn>",
    "<|start|>user",
    "[INST]",
)
"""Beginnings of turns that are recognized anywhere in text; more of them would take longer to compile."""
SPOKEN_TURNS = ("<s>[INST]", "<s> [INST]", "USER:", "User:", "Human:", "GPT4 Correct User:", "### Instruction:")
"""Beginnings of turns that count only directly after a special token that ends a turn."""
STRUCK = ("</s>", "<s>", "<s{ }")
"""The only one of these tokens that is a tag of HTML, and the openers of that tag. If the reply has shown one of them,
the token is text.
"""

check_formats(dict(FORMATS))
