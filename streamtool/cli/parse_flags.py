"""Flags of `streamtool parse`, and the choice of what the command does with them."""

from collections.abc import Sequence

from attrs import frozen

from streamtool.cli.common import read_formats
from streamtool.cli.exit_codes import DONE
from streamtool.cli.garbage import gc_disabled
from streamtool.core.errors import SettingsError


@frozen(kw_only=True)
class ParseFlags:
    """Arguments and flags of `streamtool parse`."""

    files: Sequence[str] | None = None
    tools: str | None = None
    formats: str | None = None
    delta: int | None = None
    as_json: bool = False
    prefix: str = ""
    replay: str | None = None
    negatives: str | None = None
    field: str | None = None
    tools_field: str | None = None
    jobs: int | None = None
    output: str | None = None
    resume: bool = False
    page: bool = False


def run(flags: ParseFlags) -> int:
    """Run the command and return its exit code. Raises StreamtoolError."""
    files, tools, formats, delta = flags.files, flags.tools, flags.formats, flags.delta
    if flags.page:
        from streamtool.cli.inspect import play  # noqa: PLC0415  imported on demand

        if flags.replay or flags.negatives or flags.field or flags.as_json or flags.prefix or len(files or ()) > 1:
            raise SettingsError("--page shows a single reply; for recordings, use streamtool inspect")
        play(files[0] if files else None, tools, formats, delta)
        return DONE
    named = list(files or ["-"])
    single = flags.replay is not None or flags.negatives is not None
    both = flags.replay is not None and flags.negatives is not None
    if both or (single and (named != ["-"] or delta is not None or flags.prefix)):
        raise SettingsError(
            "--replay and --negatives cannot be combined with each other or with FILE, --delta or --prefix"
        )
    if flags.negatives is not None:
        from streamtool.cli.negatives import run as run_negatives  # noqa: PLC0415  imported on demand

        run_negatives(flags.negatives, tools, formats, as_json=flags.as_json)
        return DONE
    if flags.replay is not None:
        from streamtool.cli.replay import run as run_replay  # noqa: PLC0415  imported on demand

        if tools is not None or formats is not None:
            raise SettingsError("--replay uses the tools and formats of the recording: omit --tools and --formats")
        return run_replay(flags.replay, as_json=flags.as_json)
    with gc_disabled():
        from streamtool.cli.parse import run as run_parse  # noqa: PLC0415  imported on demand
        from streamtool.cli.parse import wants_records  # noqa: PLC0415

    if flags.field is None and not wants_records(named):
        if flags.tools_field or flags.jobs or flags.output or flags.resume:
            raise SettingsError("--tools-field, --jobs, --output and --resume apply only to records: add --field")
        names = None if formats is None else read_formats(formats)
        run_parse(named[0], tools, names, delta, flags.prefix, as_json=flags.as_json)
        return DONE
    from streamtool.cli.batch import run as run_batch  # noqa: PLC0415

    if delta is not None:
        raise SettingsError("--delta does not apply to records, which are parsed whole")
    run_batch(
        named,
        flags.field,
        tools=tools,
        tools_field=flags.tools_field,
        formats=formats,
        prefix=flags.prefix,
        jobs=flags.jobs,
        output=flags.output,
        resume=flags.resume,
    )
    return DONE
