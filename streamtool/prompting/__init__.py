"""The text that the model reads: tools, past calls, results and the tool choice.

`project` turns a conversation with tools into one without tools. The other functions do parts of that work and can be
used separately.
"""

from streamtool.prompting.history import calls_text, result_text
from streamtool.prompting.projection import project, tool_prompt_for
from streamtool.prompting.selection import Selection, ToolSearch, search_name, selects_tools
from streamtool.prompting.tool_prompt import ToolPrompt, build_tool_prompt
from streamtool.prompting.transcripts import answer_id, encode_transcript, format_of, transcript_key
from streamtool.prompting.turn_instructions import choice_text, with_correction
from streamtool.prompting.volatile import stabilize

__all__ = [
    "Selection",
    "ToolPrompt",
    "ToolSearch",
    "answer_id",
    "build_tool_prompt",
    "calls_text",
    "choice_text",
    "encode_transcript",
    "format_of",
    "project",
    "result_text",
    "search_name",
    "selects_tools",
    "stabilize",
    "tool_prompt_for",
    "transcript_key",
    "with_correction",
]
