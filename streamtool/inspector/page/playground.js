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
    this.text = el("textarea", { id: "try-text", rows: 8, spellcheck: "false" });
    this.tools = el("textarea", { id: "try-tools", rows: 5, spellcheck: "false" });
    this.search = el("input", { type: "search", id: "try-search", placeholder: "Search: name or opener", autocomplete: "off", on: { input: (event) => { event.stopPropagation(); this.filter(); } } });
    this.formats = el("div", { id: "try-formats", class: "chips", role: "group", "aria-label": "Formats" });
    this.cut = el("input", { id: "try-cut", type: "number", min: 0, max: 10000, value: 4 });
    this.error = el("p", { class: "why", role: "alert" });
    this.result = el("div", {});
    this.verdict = el("span", { class: "verdict", "aria-live": "polite" });
    this.band = el("div", { class: "band plain" }, this.verdict);
    this.sums = el("p", { class: "sums", role: "status" });
    const form = el("form", { class: "playground", on: { input: () => this.soon(), submit: (event) => { event.preventDefault(); this.run(); } } },
      el("div", { class: "try-input" }, el("label", { for: "try-text" }, "Model text"), this.text),
      el("div", { class: "try-result" }, this.error, this.band, this.sums, this.result),
      el("div", { class: "try-options" },
        el("label", { for: "try-tools" }, "Tools (JSON; empty: any name is accepted)"), this.tools,
        el("label", { for: "try-cut" }, "Characters per delta (0: all in one)"), this.cut,
        el("label", { for: "try-search" }, "Formats (none selected: all default formats)"), this.search, this.formats));
    show(place, el("article", {}, el("p", { class: "back" }, el("a", { href: "#/" }, "← all exchanges")), el("h2", {}, "Playground"),
      el("p", {}, "The parser reads this text as if it arrived at 25 deltas per second. The text is sent only to this server."),
      form));
    this.begin();
  }

  async begin() {
    this.table = await formats();
    this.formats.append(...[...this.table.values()].map((form) =>
      el("label", { class: "chip", "data-words": [form.name, ...form.openers].join(" ").toLowerCase(), title: form.openers.slice(0, 3).join(" ") },
        el("input", { type: "checkbox", value: form.name }), form.opt_in ? `${form.name} (opt-in)` : form.name)));
    const example = await json("example");
    this.text.value = example.text ?? TEXT;
    this.tools.value = example.text === undefined && !example.tools ? TOOLS : example.tools ? JSON.stringify(example.tools, null, 1) : "";
    if (example.cut) this.cut.value = example.cut;
    for (const box of this.boxes) box.checked = example.formats?.includes(box.value) ?? false;
    await this.run();
  }

  get boxes() {
    return [...this.formats.querySelectorAll("input")];
  }

  // Shows the formats that fit the search. Selected ones stay visible.
  filter() {
    const word = this.search.value.trim().toLowerCase();
    for (const chip of this.formats.children) chip.hidden = !chip.dataset.words.includes(word) && !chip.firstChild.checked;
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
        formats: this.boxes.filter((box) => box.checked).map((box) => box.value),
        cut: Number(this.cut.value),
      });
      if (number !== this.number) return;
      this.error.textContent = "";
      show(this.verdict, verdict(told.verdict));
      this.band.classList.toggle("good", told.replies[0].steps.some((step) => step[7].some((event) => event.type === "call_start")));
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
