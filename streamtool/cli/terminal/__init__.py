"""Terminal interface of the agent: input, display, approval, costs and sessions.

`chatting` is the conversation loop, `dialog` keeps the conversation's history, and `reading` is the line editor. `live`
displays a run, `call_view` a call, and `edits` the change that a call makes to a file. `asking` asks for approval,
`costs` adds up usage, and `sessions` saves conversations.
"""
