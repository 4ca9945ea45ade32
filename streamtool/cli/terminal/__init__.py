"""The agent in a terminal: what is read, shown, asked, counted and kept while it works.

`dialog` is the conversation, `chatting` its loop, `reading` the line that somebody writes. `live` shows what happens,
`call_view` a call, `edits` what it changes; `asking` asks before it is executed. `costs` counts, `sessions` keeps.
"""
