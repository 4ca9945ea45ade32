"""The commands and their options. `commands` turns exceptions into a message and an exit code."""

import io
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]  # missing in __all__

from streamtool.cli.commands import Commands
from streamtool.cli.common import open_source
from streamtool.cli.exit_codes import DONE, FAILED
from streamtool.cli.garbage import gc_disabled
from streamtool.cli.help import COMPLETE_VARIABLE, Command

app = typer.Typer(
    name="streamtool",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    help="""Streamed tool calls for language models that only write text.

    \b
    streamtool demo                               watch it work; needs no network
    streamtool serve --upstream http://127.0.0.1:8000
                                                  put the proxy in front of a model
    streamtool probe http://127.0.0.1:8000        find out what that model can do
    streamtool run "What is new?" --mcp URL       let a model work with tools
    echo '@ping {"n": 1}' | streamtool parse -    print the calls in model text

    \b
    Exit codes:  0 done · 1 failed · 2 wrong usage, input or settings
                 3 upstream unreachable · 130 interrupted
    """,
)


command = partial(app.command, cls=Command)


def run(argv: Sequence[str] | None) -> int:
    """Run a command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if COMPLETE_VARIABLE in os.environ:
        completion_init()
    try:
        app(args=None if argv is None else list(argv), prog_name="streamtool")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED if end.code else DONE
    return DONE


def _version(wanted: bool) -> None:
    if wanted:
        import streamtool  # noqa: PLC0415  slow: reads the distribution's metadata

        print(f"streamtool {streamtool.__version__}")
        raise typer.Exit(DONE)


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Define the options that precede the command."""


Upstream = Annotated[
    str | None, typer.Option(metavar="URL|sample", help="URL of the model's server; default: the embedded sample.")
]
Protocol = Annotated[
    str | None,
    typer.Option(
        metavar="PROTOCOL",
        help="The upstream's protocol: auto, chat, messages, responses, ollama, gemini or completions.",
    ),
]
ServerUrl = Annotated[str, typer.Argument(metavar="URL|sample", help="URL of the model's server.")]
TriedProtocol = Annotated[
    str | None,
    typer.Option(metavar="PROTOCOL", help="chat, messages, ollama, gemini or completions; default: try all."),
]
KeyEnv = Annotated[str | None, typer.Option(metavar="NAME", help="Environment variable that holds the upstream's key.")]
JsonEvents = Annotated[bool, typer.Option("--json", help="Print one JSON object per event.")]
Config = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Settings file (TOML); default: ./streamtool.toml, or the one in ~/.config/streamtool."
    ),
]
Calibrations = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Calibrations; default: STREAMTOOL_CALIBRATIONS, or the user's state folder."),
]
ModeOption = Annotated[
    str | None,
    typer.Option(metavar="MODE", help="How tools reach the model: emulate (as text), native, rescue or auto."),
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="Format to teach the model (see: streamtool formats)."),
]
ContextOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Size of the model's context window, in tokens.")
]


@command()
def demo(
    *,
    upstream: Annotated[
        str | None, typer.Option(metavar="URL", help="Use this model instead of the sample (Chat Completions).")
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="Model to request from the upstream.")] = "sample",
    key_env: KeyEnv = None,
    format_: FormatOption = None,
    delay: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="Time between the sample's deltas.")] = 0.06,
    client: Annotated[
        str, typer.Option(metavar="NAME", help="http, or openai for the official client (pip install openai).")
    ] = "http",
    page: Annotated[bool, typer.Option("--page", help="Open the inspector in a browser and watch it there.")] = False,
) -> None:
    """Watch a model that only writes text call a tool, live. Works offline.

    The demo starts the proxy on a free loopback port, with the embedded sample model as its upstream. A client asks a
    question, receives a call, sends the result and receives the final answer.

    \b
    Examples:
      streamtool demo
      streamtool demo --format qwen3_coder
      streamtool demo --client openai
      streamtool demo --page
      streamtool demo --upstream http://127.0.0.1:11434 --model qwen3:8b
    """
    with gc_disabled():
        from streamtool.cli.demo import DemoFlags  # noqa: PLC0415  imported on demand
        from streamtool.cli.demo import run as run_demo  # noqa: PLC0415

    run_demo(DemoFlags(upstream, model, key_env, format_, delay, client, page))


@command()
def serve(
    *,
    upstream: Upstream = None,
    protocol: Protocol = None,
    key_env: KeyEnv = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Request this model, whatever the client asks for.")
    ] = None,
    mode: ModeOption = None,
    format_: FormatOption = None,
    select_tools: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Show the model the parameters of only the N tools that fit best; 0: all."
        ),
    ] = None,
    context: ContextOption = None,
    config: Config = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Default: 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", min=0, max=65535, help="Default: 8700; 0 means any free port.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of processes that share the port; default: 1.")
    ] = None,
    server: Annotated[str, typer.Option(metavar="NAME", help="uvicorn (asyncio) or hypercorn (trio).")] = "uvicorn",
    check: Annotated[bool, typer.Option("--check", help="Check the settings, print a summary, and exit.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow a non-loopback host without client keys.")
    ] = False,
    inspect: Annotated[
        bool,
        typer.Option("--inspect", help="Serve a page at /inspect that shows exchanges; on loopback, with --contents."),
    ] = False,
    contents: Annotated[
        bool, typer.Option("--contents", help="Allow prompts and replies in the log and the inspector.")
    ] = False,
    calibrations: Calibrations = None,
) -> None:
    """Run the proxy.

    Clients send tools and receive calls; the upstream reads and writes only text.

    Flags override STREAMTOOL_* variables, which override the settings file. Keys are not accepted as flags; --key-env
    names the variable that holds the key. If no upstream is given, the embedded sample model is used. The command
    prints a curl command to try.

    \b
    Examples:
      streamtool serve
      streamtool serve --upstream http://127.0.0.1:8000 --model my-model
      streamtool serve --upstream https://api.example.com/v1 --key-env EXAMPLE_KEY
      streamtool serve --config streamtool.toml --check
      streamtool serve --inspect
    """
    from streamtool.cli.serve import ServeFlags  # noqa: PLC0415  imported on demand
    from streamtool.cli.serve import run as run_serve  # noqa: PLC0415

    run_serve(
        ServeFlags(
            upstream=upstream,
            protocol=protocol,
            key_env=key_env,
            model=model,
            mode=mode,
            format=format_,
            select_tools=select_tools,
            context=context,
            config=config,
            host=host,
            port=port,
            workers=workers,
            server=server,
            insecure=insecure,
            inspect=inspect,
            contents=contents,
            calibrations=calibrations,
        ),
        only_check=check,
    )


@command()
def reload(
    *,
    config: Config = None,
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Host of the server; default: from the settings.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=1, max=65535, help="Port of the server; default: from the settings."),
    ] = None,
) -> None:
    """Make a running `streamtool serve` on this machine reload its settings.

    Open requests keep the settings they started with. The new settings are checked first; the server's log reports when
    they take effect.
    """
    from streamtool.cli.serve import ServeFlags  # noqa: PLC0415  imported on demand
    from streamtool.cli.serve import reload as ask_to_reload  # noqa: PLC0415

    ask_to_reload(ServeFlags(config=config, host=host, port=port, insecure=True))


@command()
def init(
    *,
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="URL of the model's server; default: try the usual local ports."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model to request; default: the first one listed.")
    ] = None,
    key_env: KeyEnv = None,
    output: Annotated[str, typer.Option(metavar="FILE", help="File to write.")] = "streamtool.toml",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Write a settings file for the model servers that answer.

    The command asks servers what they are and which models they have, and writes a commented streamtool.toml with its
    schema. Nothing is generated, and no key is written.

    \b
    Examples:
      streamtool init
      streamtool init http://127.0.0.1:11434 --model qwen3:8b
    """
    from streamtool.cli.init import InitFlags  # noqa: PLC0415  imported on demand
    from streamtool.cli.init import run as run_init  # noqa: PLC0415

    run_init(InitFlags(url, model, key_env, output, force))


@command()
def schema() -> None:
    """Print the JSON Schema of the settings file, for editors.

    Editors use it if the first line of the settings file is "#:schema streamtool.schema.json".

    \b
    Examples:
      streamtool schema > streamtool.schema.json
    """
    from streamtool.cli.init import schema_text  # noqa: PLC0415  imported on demand

    sys.stdout.write(schema_text())


@command()
def probe(
    *,
    url: ServerUrl,
    protocol: TriedProtocol = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model to probe; default: the first one listed.")
    ] = None,
    key_env: KeyEnv = None,
    tries: Annotated[int, typer.Option(min=1, metavar="N", help="Attempts per format.")] = 1,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time limit for a request.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON object.")] = False,
) -> None:
    """Find out what an upstream can do, and print the settings for it.

    The probe sends about twenty short requests with fixed prompts. The replies show whether the upstream streams,
    accepts native tools and system messages, preserves markers, and which of the taught formats the model obeys.

    \b
    Examples:
      streamtool probe http://127.0.0.1:11434 --model qwen3:8b
      streamtool probe https://api.example.com/v1 --key-env EXAMPLE_KEY --tries 3
      streamtool probe sample --json
    """
    from streamtool.cli.probe import ProbeFlags  # noqa: PLC0415  imported on demand
    from streamtool.cli.probe import run as run_probe  # noqa: PLC0415

    run_probe(ProbeFlags(url, protocol, model, key_env, tries, timeout), as_json=as_json)


@command("eval")
def evaluate(
    *,
    url: ServerUrl,
    protocol: TriedProtocol = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model to measure; default: the first one listed.")
    ] = None,
    key_env: KeyEnv = None,
    format_: Annotated[
        list[str] | None, typer.Option("--format", metavar="NAME", help="Format to try; repeat for more.")
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODE", help="emulate, native, or naive (the baseline without streamtool); default: the first two."
        ),
    ] = None,
    schema: Annotated[
        list[str] | None, typer.Option(metavar="STYLE", help="Style of the tools' schemas; default: compact.")
    ] = None,
    forcing: Annotated[
        list[str] | None, typer.Option(metavar="METHOD", help="How to force demanded calls; default: auto.")
    ] = None,
    select: Annotated[
        list[int] | None,
        typer.Option(
            min=1, metavar="N", help="Also show the parameters of only N tools (select_tools); repeat for more."
        ),
    ] = None,
    suite: Annotated[
        str, typer.Option(metavar="NAME", help="own, or bfcl, which needs the packages bfcl-eval and mpmath.")
    ] = "own",
    group: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Group of scenarios; default: all.")] = None,
    choice: Annotated[
        str,
        typer.Option(metavar="CHOICE", help="auto, or required: demand a call wherever one is expected."),
    ] = "auto",
    requests: Annotated[int | None, typer.Option(min=1, metavar="N", help="Maximum number of requests.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, metavar="M", help="Maximum duration.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time limit for a reply.")] = 120.0,
    max_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Maximum length of a reply; models that reason need more.")
    ] = 300,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed for the order of the scenarios.")] = 1,
    save: Annotated[str | None, typer.Option(metavar="FILE", help="Append every outcome to this new file.")] = None,
    resume: Annotated[str | None, typer.Option(metavar="FILE", help="Continue the evaluation in this file.")] = None,
    recordings: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Record each exchange for `streamtool inspect` in this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
    as_card: Annotated[bool, typer.Option("--card", help="Print the report as Markdown.")] = False,
    as_settings: Annotated[
        bool, typer.Option("--print-settings", help="Print only the settings file's rule for the best variant.")
    ] = False,
    calibrations: Calibrations = None,
    calibrate: Annotated[
        bool, typer.Option("--calibration/--no-calibration", help="Save the result for streamtool serve.")
    ] = True,
) -> None:
    """Measure how often a model makes the right call, and in which format and mode it does so most often.

    Scenarios with fixed questions and tools pass through the same code as in `serve`. Their calls are compared with the
    expected ones by value. All variants answer the same scenarios; those that are clearly worse are dropped. The result
    is saved, and streamtool serve applies it where neither mode nor format nor schema is set.

    \b
    Examples:
      streamtool eval http://127.0.0.1:8000 --requests 200
      streamtool eval http://127.0.0.1:11434 --model qwen3:8b --save q.jsonl
      streamtool eval http://127.0.0.1:11434 --model qwen3:8b --resume q.jsonl
    """
    from streamtool.cli.eval import EvalFlags  # noqa: PLC0415  imported on demand
    from streamtool.cli.eval import run as run_eval  # noqa: PLC0415

    flags = EvalFlags(
        url,
        protocol,
        model,
        key_env,
        tuple(format_ or ()),
        tuple(mode or ()),
        tuple(schema or ()),
        tuple(forcing or ()),
        tuple(select or ()),
        tuple(group or ()),
        suite,
        choice,
        requests,
        minutes,
        timeout,
        max_tokens,
        seed,
        save,
        resume,
        recordings,
        calibrations,
        calibrate,
    )
    run_eval(flags, as_json=as_json, as_card=as_card, as_settings=as_settings)


@command("run")
def run_task(
    *,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Task for the agent; if omitted, you are prompted for one.")
    ] = None,
    upstream: Upstream = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Python function to use as a tool; repeat for more."),
    ] = None,
    mcp: Annotated[
        list[str] | None, typer.Option(metavar="COMMAND|URL", help="MCP server whose tools to use; repeat for more.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Prompt for another task after each answer.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Run all tools without asking.")] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this tool without asking (* and ? are wildcards); repeat for more."),
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="Save the conversation under this name, or continue it.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the latest conversation, or the one named by --session.")
    ] = False,
    no_session: Annotated[bool, typer.Option("--no-session", help="Do not save the conversation.")] = False,
    as_json: JsonEvents = False,
    protocol: Protocol = None,
    key_env: KeyEnv = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model to request from the upstream.")] = None,
    mode: ModeOption = None,
    format_: FormatOption = None,
    config: Config = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message to put before the task.")] = None,
    max_turns: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of replies from the model.")] = 20,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time limit for a call.")] = 60.0,
    price_input: Annotated[
        float | None, typer.Option(min=0, metavar="PRICE", help="Price per million prompt tokens.")
    ] = None,
    price_output: Annotated[
        float | None, typer.Option(min=0, metavar="PRICE", help="Price per million reply tokens.")
    ] = None,
) -> None:
    """Let a model work on a task with tools, or hold a conversation with it.

    The command prints text and calls as the model writes them, and asks before it runs a tool. --yes runs all tools
    without asking. Without a terminal, tools require --yes or --allow.

    If no task is given, or with --chat, the command starts a conversation. Conversations at a terminal are saved
    (streamtool sessions).

    \b
    Examples:
      streamtool run "What is the weather in Paris?" --tool mytools:get_weather
      streamtool run --upstream http://127.0.0.1:11434 --mcp "python notes.py"
      streamtool run --resume --mcp "python notes.py" --allow "read_*"
      streamtool run "List the issues" --mcp https://example.com/mcp --json
    """
    with gc_disabled():
        from streamtool.cli.run import RunFlags, SessionFlags  # noqa: PLC0415  imported on demand
        from streamtool.cli.run import run as run_agent  # noqa: PLC0415
        from streamtool.cli.serve import ServeFlags  # noqa: PLC0415
        from streamtool.cli.terminal.costs import Prices  # noqa: PLC0415

    where = ServeFlags(
        upstream=upstream,
        protocol=protocol,
        key_env=key_env,
        model=model,
        mode=mode,
        format=format_,
        config=config,
        insecure=True,  # no socket is opened
    )
    known = price_input is not None or price_output is not None
    run_agent(
        RunFlags(
            task=task,
            upstream=where,
            system=system,
            tools=tool or (),
            mcp=mcp or (),
            max_turns=max_turns,
            timeout=timeout,
            allow=None if yes else allow or (),
            json=as_json,
            chat=chat,
            session=SessionFlags(session, resume, no_session),
            prices=Prices(price_input or 0.0, price_output or 0.0) if known else None,
        )
    )


@command()
def sessions() -> None:
    """List the conversations saved by `streamtool run`, latest first.

    \b
    Examples:
      streamtool sessions
    """
    from streamtool.cli.sessions import run as list_sessions  # noqa: PLC0415  imported on demand

    list_sessions()


@command()
def inspect(
    *,
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="Recordings, or folders of recordings.")],
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="Default: 0 (any free port).")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Show recordings on a web page.

    The page shows what the model wrote, when the client received it, what was buffered, and why. It is served on this
    machine until the command is interrupted. `streamtool serve --inspect` shows exchanges as they happen.

    \b
    Examples:
      streamtool inspect recordings
      streamtool inspect recordings/req_1.jsonl --no-browser
    """
    from streamtool.cli.inspect import run as run_inspect  # noqa: PLC0415  imported on demand

    run_inspect(files, port=port, open_page=browser)


@command()
def parse(
    *,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE…|-", help="File of model text (- for standard input), or files of records."),
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="JSON list of tools (OpenAI's, or {name, parameters}); default: any name."),
    ] = None,
    formats: Annotated[
        str | None, typer.Option(metavar="A,B", help="Formats to listen for; default: all but the opt-in ones.")
    ] = None,
    delta: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Feed N characters at a time; default: as they arrive.")
    ] = None,
    as_json: JsonEvents = False,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Start of the reply, if the prompt already contained it.")
    ] = "",
    replay: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Replay this recording instead of parsing a file."),
    ] = None,
    negatives: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Report false calls and lost text in all files in this folder."),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Parse records (JSONL, or a JSON array); PATH leads to the text in each."),
    ] = None,
    tools_field: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Path to the tools in each record; default: use --tools."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of processes for records; default: one per core.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File for the results of records (.jsonl, .parquet); default: stdout."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the interrupted run that wrote to --output.")
    ] = False,
    page: Annotated[bool, typer.Option("--page", help="Show the text on a web page, where you can edit it.")] = False,
) -> None:
    """Print the parser events for model text.

    The command reads the text as it arrives and prints each event as it happens. --replay parses a recording in its
    original pieces and compares the events with the recorded ones (exit code 1 if they differ). --negatives parses each
    file in a folder as one reply.

    With --field, the files contain records, and the command prints a line of JSON for each record, with its text and
    calls. Folders and compressed files are always read as records or recordings.

    \b
    Examples:
      streamtool parse reply.txt --tools tools.json
      some-model | streamtool parse - --json
      echo '@ping {"n": 1}' | streamtool parse - --delta 4
      streamtool parse --replay recordings/req_1.jsonl
      streamtool parse --negatives docs
      streamtool parse replies.jsonl.gz --field text --output calls.jsonl
      streamtool parse recordings --output calls.parquet
      streamtool parse reply.txt --page
    """
    from streamtool.cli.parse_flags import ParseFlags  # noqa: PLC0415  imported on demand
    from streamtool.cli.parse_flags import run as run_parse  # noqa: PLC0415

    flags = ParseFlags(
        files=files,
        tools=tools,
        formats=formats,
        delta=delta,
        as_json=as_json,
        prefix=prefix,
        replay=replay,
        negatives=negatives,
        field=field,
        tools_field=tools_field,
        jobs=jobs,
        output=output,
        resume=resume,
        page=page,
    )
    raise typer.Exit(run_parse(flags))


@command()
def prompt(
    *,
    request: Annotated[str, typer.Argument(metavar="REQUEST.json", help="File with the request body, or - for stdin.")],
    format_: FormatOption = None,
    context: ContextOption = None,
    config: Config = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="PROTOCOL",
            help="Protocol of the request: chat, messages, responses, ollama or gemini; default: guessed.",
        ),
    ] = None,
) -> None:
    """Print the exact text that the model would read for a request.

    \b
    Examples:
      streamtool prompt request.json
      streamtool prompt request.json --format labelled
    """
    from streamtool.cli.prompt import run as run_prompt  # noqa: PLC0415  imported on demand

    run_prompt(request, format_, config, protocol, context)


@command()
def formats(
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this format, with an example.")] = None,
) -> None:
    """List the call formats, or show one with an example.

    \b
    Examples:
      streamtool formats
      streamtool formats invoke
    """
    from streamtool.cli.formats import run as run_formats  # noqa: PLC0415  imported on demand

    run_formats(name)


@command()
def recipe(
    *,
    client: Annotated[
        str | None, typer.Argument(metavar="CLIENT", help="claude-code, codex …; default: list all.")
    ] = None,
    server: Annotated[
        str | None, typer.Argument(metavar="SERVER", help="llama.cpp, ollama, vllm or lm-studio.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name; default: an example that the server knows.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="Size of the model's context; default: 65536.")
    ] = None,
) -> None:
    """Print how to connect a client to a model server through streamtool.

    \b
    Examples:
      streamtool recipe
      streamtool recipe claude-code llama.cpp
      streamtool recipe codex ollama --model qwen3-coder:30b --context 32768
    """
    from streamtool.cli.recipe import run as run_recipe  # noqa: PLC0415  imported on demand

    run_recipe(client, server, model, context)


@command()
def plugin(
    *,
    engine: Annotated[
        str | None, typer.Argument(metavar="ENGINE", help="Print the path of this engine's plugin file.")
    ] = None,
) -> None:
    """List the plugins for inference engines, or print one's path.

    \b
    Examples:
      streamtool plugin
      vllm serve MODEL --enable-auto-tool-choice --tool-call-parser streamtool \\
          --tool-parser-plugin $(streamtool plugin vllm)
    """
    from streamtool.cli.plugin import run as run_plugin  # noqa: PLC0415  imported on demand

    run_plugin(engine)


@command()
def completion(*, name: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print a script that makes a shell complete the commands and options.

    \b
    Examples:
      streamtool completion bash >> ~/.bashrc
      streamtool completion zsh >> ~/.zshrc
      streamtool completion fish > ~/.config/fish/completions/streamtool.fish
    """
    from streamtool.cli.completion import run as run_completion  # noqa: PLC0415  imported on demand

    run_completion(name)


@command()
def bench(
    *,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="Model text to measure with instead of the built-in samples.")
    ] = None,
) -> None:
    """Measure the parser's speed on this machine.

    \b
    Examples:
      streamtool bench
      streamtool bench reply.txt
    """
    from streamtool import bench as measure  # noqa: PLC0415  imported on demand

    if file is not None:
        open_source(file).close()
    raise typer.Exit(measure.main(file))
