"""Chat templates that demand what the strictest ones do take the messages that we make (`tools/chat_templates.py`)."""

from pathlib import Path

import pytest

from tools.chat_templates import CONVERSATIONS, environment, failures, main

STRICT = """
{%- if messages[0].role == "system" %}{{ messages[0].content }}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% endif %}
{%- for message in rest %}
  {%- if message.role != ("user" if loop.index0 % 2 == 0 else "assistant") %}{{ raise_exception("take turns") }}{% endif %}
  {%- if message.content is not string or not message.content %}{{ raise_exception("no text") }}{% endif %}
[{{ message.role }}]{{ message.content }}
{%- endfor %}
"""
NO_SYSTEM = STRICT.replace("{{ messages[0].content }}", '{{ raise_exception("no system role") }}')
FORGETS = """
{%- for message in messages %}{% if message.role != "system" or loop.first %}{{ message.content }}{% endif %}{% endfor %}
"""


@pytest.mark.parametrize(("source", "name"), [(STRICT, "m"), (NO_SYSTEM, "gemma-2-9b-it"), (FORGETS, "m")])
def test_projected_messages_lose_nothing_and_raise_nothing(source: str, name: str):
    template = environment().from_string(source)
    assert list(failures(template, name, projected=False))
    assert list(failures(template, name, projected=True)) == []


def test_the_command_counts_the_templates_that_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "strict.jinja").write_text(STRICT)
    assert main(str(tmp_path)) == 0
    assert capsys.readouterr().out == "1 templates: 1 fail on the original messages, 0 on projected ones\n"
    (tmp_path / "never.jinja").write_text('{{ raise_exception("never") }}')
    assert main(str(tmp_path)) == 1
    assert len(capsys.readouterr().out.splitlines()) == len(CONVERSATIONS) + 1
