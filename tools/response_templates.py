"""Record what transformers' reference makes of the replies in `tests/support/response_templates.py`.

    python -m tools.response_templates

Requires transformers (the `adapters` extra). The result, `tests/models/response_templates.json`, contains the messages
for the replies, and the calls that the reference reads in the text that we write for each template.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests" / "models" / "response_templates.json"


def main() -> None:
    """Write the file."""
    sys.path.insert(0, str(ROOT / "tests"))
    import transformers  # noqa: PLC0415  optional
    from support import response_templates as support  # noqa: PLC0415  found by the line above

    recorded = {
        "transformers": transformers.__version__,
        "replies": [
            {
                "template": reply.template,
                "title": reply.title,
                "message": support.messages(reply.text, support.TEMPLATES[reply.template]),
            }
            for reply in support.REPLIES
        ],
        "written": {
            name: support.messages(support.written(name), template)
            for name, template in support.TEMPLATES.items()
            if name not in support.NOT_READ_BACK
        },
    }
    RECORDED.write_text(json.dumps(recorded, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
