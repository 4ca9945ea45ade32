"""Measures what a constraint costs a real llama.cpp server while the model writes: `python benchmarks/constraint.py
URL`.

Each prompt is continued without a constraint, with the grammar of a free tool choice (text, then calls), and with the
same grammar after a trigger, which only `/completion` supports. The tokens per second are those that the server
reports; the three variants alternate, and the ratio is the median over the prompts.
"""

import statistics
import sys
from typing import Any

import httpx

from streamtool.core.conversation import Tool
from streamtool.forcing.grammar import call_grammar

TOKENS, ROUNDS = 100, 3
PROMPTS = (
    "Explain how a bicycle works and list its parts.\n",
    "The history of Norway in a few sentences:\n",
    "Once upon a time there was a fox who\n",
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
}
FORMAT = "invoke"


def variants() -> dict[str, dict[str, Any]]:
    """Return the fields of each variant."""
    tools = [Tool("get_weather", "Get the weather in a city.", SCHEMA)]
    made = [call_grammar(tools, FORMAT, forced=False, parallel=True, lazy=lazy) for lazy in (False, True)]
    assert all(made)
    (grammar, _), (lazy, triggers) = made
    words = [{"type": 1, "value": trigger} for trigger in triggers]
    return {
        "no constraint": {},
        "grammar": {"grammar": grammar},
        "grammar after a trigger": {"grammar": lazy, "grammar_lazy": True, "grammar_triggers": words},
    }


def main(url: str) -> None:
    speeds: dict[str, list[float]] = {name: [] for name in variants()}
    with httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
        for prompt in PROMPTS * ROUNDS:
            for name, fields in variants().items():
                body = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "cache_prompt": False, **fields}
                answer = client.post("/completion", json=body).raise_for_status().json()
                speeds[name].append(answer["timings"]["predicted_per_second"])
    bare = speeds["no constraint"]
    for name, found in speeds.items():
        ratios = [one / other for one, other in zip(found, bare, strict=True)]
        print(f"{name:24} {statistics.median(found):7.1f} tokens/s {statistics.median(ratios):6.2f} ×")


if __name__ == "__main__":
    main(*sys.argv[1:])
