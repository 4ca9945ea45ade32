// Playground: parses text entered by the user.

import { formats, json, post } from "./api.js";
import { el, plural, show, verdict } from "./dom.js";
import { Picture } from "./picture.js";

const TEXT = `Let me look that up.
<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}
</tool_call>`;
const TOOLS = `[{"name": "get_weather", "parameters": {"type": "object",
  "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}]`;

export class Playground {
  constructor(place) {
    this.text = el("textarea", { id: "try-text", rows: 9, spellcheck: "false" });
    this.tools = el("textarea", { id: "try-tools", rows: 5, spellcheck: "false" });
    this.formats = el("select", { id: "try-formats", multiple: true, size: 6 });
    this.cut = el("input", { id: "try-cut", type: "number", min: 0, max: 10000, value: 4 });
    this.error = el("p", { class: "why", role: "alert" });
    this.result = el("div", {});
    this.verdict = el("p", { class: "verdict", "aria-live": "polite" });
    this.sums = el("p", { role: "status" });
    const form = el("form", { class: "playground", on: { input: () => this.soon(), submit: (event) => { event.preventDefault(); this.run(); } } },
      el("label", { for: "try-text" }, "Model text"), this.text,
      el("label", { for: "try-tools" }, "Tools (JSON; empty: any name is accepted)"), this.tools,
      el("div", { class: "options" },
        el("div", {}, el("label", { for: "try-formats" }, "Formats (none selected: all default formats)"), this.formats),
        el("div", {}, el("label", { for: "try-cut" }, "Characters per delta (0: all in one)"), this.cut)));
    show(place, el("article", {}, el("p", { class: "back" }, el("a", { href: "#/" }, "← all exchanges")), el("h2", {}, "Playground"),
      el("p", {}, "The parser reads this text as if it arrived at 25 deltas per second. The text is sent only to this server."),
      form, this.error, this.verdict, this.sums, this.result));
    this.begin();
  }

  async begin() {
    this.table = await formats();
    this.formats.append(...[...this.table.values()].map((form) => el("option", { value: form.name }, form.opt_in ? `${form.name} (opt-in)` : form.name)));
    const example = await json("example");
    this.text.value = example.text ?? TEXT;
    this.tools.value = example.text === undefined && !example.tools ? TOOLS : example.tools ? JSON.stringify(example.tools, null, 1) : "";
    if (example.cut) this.cut.value = example.cut;
    for (const option of this.formats.options) option.selected = example.formats?.includes(option.value) ?? false;
    await this.run();
  }

  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.run(), 250);
  }

  async run() {
    const number = (this.number = (this.number ?? 0) + 1);
    try {
      const tools = this.tools.value.trim();
      const told = await post("parse", {
        text: this.text.value,
        tools: tools ? JSON.parse(tools) : null,
        formats: [...this.formats.selectedOptions].map((option) => option.value),
        cut: Number(this.cut.value),
      });
      if (number !== this.number) return;
      this.error.textContent = "";
      show(this.verdict, verdict(told.verdict));
      this.fill(told.replies[0]);
    } catch (error) {
      this.error.textContent = error instanceof SyntaxError ? `The tools are not valid JSON: ${error.message}` : error.message;
    }
  }

  fill(reply) {
    this.picture ??= new Picture(this.table);
    if (!this.result.firstChild) show(this.result, this.picture.element);
    this.picture.reply = null;
    this.picture.load(reply);
    const events = reply.steps.flatMap((step) => step[7]);
    const calls = events.filter((event) => event.type === "call_start");
    const repairs = events.flatMap((event) => event.repairs ?? []);
    const discards = events.filter((event) => event.type === "discarded");
    this.sums.textContent = [
      plural(calls.length, "call") + (calls.length ? ` (${calls.map((call) => `${call.name}, ${call.format}`).join("; ")})` : ""),
      repairs.length ? `repaired: ${repairs.join(", ")}` : null,
      discards.length ? `discarded: ${discards.map((event) => event.reason).join(", ")}` : null,
      `${plural(reply.steps.length, "step")}`,
    ].filter(Boolean).join(" · ");
  }

  leave() {
    clearTimeout(this.timer);
    this.picture?.leave();
  }

  key(event) {
    if (event.key === "Escape") location.hash = "#/";
    else this.picture?.key(event);
  }
}
