// The page of one exchange: its facts, its replies as pictures, and the other tabs.

import { formats, json, text } from "./api.js";
import { copy, el, plural, seconds, show, verdict } from "./dom.js";
import { colour, discarded, found, outcome, quotations, speed, title, tokens } from "./words.js";
import { bytesView, promptView, requestsView, sessionView } from "./details.js";
import { Picture } from "./picture.js";

const TABS = [["timeline", "Timeline"], ["session", "Session"], ["prompt", "Prompt"], ["bytes", "Bytes"], ["requests", "Requests"]];

export class ExchangePage {
  constructor(place, id, contents) {
    this.place = place;
    this.id = id;
    this.contents = contents;
    this.tab = "timeline";
    this.which = 0;
    this.left = false;
    this.loading = false;
    this.since = null;
    this.heading = el("h2", {}, `Exchange ${id}`);
    this.status = el("strong", { class: "status" });
    this.verdict = el("span", { class: "verdict" });
    this.band = el("div", { class: "band", role: "status" }, this.status, this.verdict);
    this.facts = el("ul", { class: "main-facts", "aria-label": "Main facts" });
    this.all = el("div", { class: "facts-of" });
    this.note = el("p", { class: "note", role: "status" });
    this.done = el("p", { class: "done", role: "status" });
    this.panel = el("div", { id: "panel", role: "tabpanel", tabindex: -1 });
    this.tabs = el("div", { role: "tablist", "aria-label": "Views" }, TABS.map(([name, word]) =>
      el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", "data-tab": name,
        on: { click: () => this.open(name), keydown: (event) => this.arrow(event) } }, word)));
    this.replies = el("div", { class: "replies", role: "group", "aria-label": "Attempts and choices" });
    const act = (word, call) => el("button", { type: "button", on: { click: () => this.run(call) } }, word);
    show(place,
      el("article", { class: "exchange" },
        el("p", { class: "back" }, el("a", { href: "#/" }, "← all exchanges")),
        el("div", { class: "heading" }, this.heading,
          el("div", { class: "acts" },
            act("Copy as curl", async () => this.copied((await json(`exchanges/${id}/requests?origin=${encodeURIComponent(location.origin)}`)).curl, "the command")),
            act("Copy as test case", async () => this.copied(await text(`exchanges/${id}/case?parser=${this.parser}`), "the test case")),
            act("Save recording", () => this.save()))),
        this.band, this.facts, this.done, this.note, this.tabs, this.panel,
        el("details", { class: "all-facts" }, el("summary", {}, "All facts"), this.all)));
    this.load();
  }

  get parser() {
    return this.told?.replies[this.which]?.parser ?? 0;
  }

  leave() {
    this.left = true;
    this.picture?.leave();
  }

  // Accepts a new summary. A changed exchange is loaded again, after a pause of three times the loading time.
  changed(summary) {
    this.since = summary;
    if (!this.loading && this.stale) this.load();
    else if (this.told) this.fillNote();
  }

  // Whether the loaded exchange is out of date. An exchange that had ended when it was loaded does not change.
  get stale() {
    return this.since !== null && (this.since.outcome === "open" || JSON.stringify(this.since) !== JSON.stringify(this.told?.summary));
  }

  async load() {
    this.loading = true;
    this.since = null;
    const began = performance.now();
    try {
      const [told, table] = await Promise.all([json(`exchanges/${this.id}`), formats()]);
      if (this.left) return;
      this.told = told;
      this.formats = table;
      this.fill();
      this.fillNote();
    } catch (error) {
      this.note.textContent = error.message;
    } finally {
      setTimeout(() => {
        this.loading = false;
        if (this.stale && !this.left) this.load();
      }, 3 * (performance.now() - began));
    }
  }

  fill() {
    const one = this.told.summary;
    const steps = this.told.replies.flatMap((reply) => reply.steps).length;
    const rate = speed(one);
    this.heading.replaceChildren(`Exchange ${this.id} `, el("span", { class: "title" }, title(one)));
    this.band.className = `band ${colour(one)}`;
    const told = outcome(one);
    this.status.textContent = one.verdict?.text.toLowerCase().startsWith(told) ? "" : told;
    show(this.verdict, verdict(one.verdict));
    const place = one.server ? `${one.upstream ?? "upstream"} at ${one.server}` : one.upstream;
    const model = one.upstream_model && one.upstream_model !== one.model ? `${one.model} → ${one.upstream_model}` : one.model;
    const main = [
      one.status && `HTTP ${one.status}`, model, `${one.protocol} → ${one.upstream_protocol}`,
      found(one.found) || (one.format && one.mode === "emulate" ? `${one.format} taught` : one.mode),
      one.first_byte != null && `first byte ${seconds(one.first_byte)}`, one.first_call != null && `first call ${seconds(one.first_call)}`,
      one.seconds != null && `total ${seconds(one.seconds)}`, steps && plural(steps, "delta"), tokens(one), rate && `${Math.round(rate)} tokens/s`,
    ].filter(Boolean);
    show(this.facts, main.map((fact) => el("li", {}, fact)));
    const rows = [
      ["Outcome", `${outcome(one)}${one.unmet ? `: ${one.unmet}` : ""}`],
      ["Finish reason", one.reason],
      ["Model", model],
      ["Upstream", place],
      ["Server", one.engine],
      ["Mode", one.mode],
      ["Format", found(one.found) || `${one.format} (taught)`],
      ["Tool choice", one.forced ? `a call was demanded, forced by ${one.forced}` : one.tools ? "free" : "no tools"],
      ["Attempts", `${one.attempts ?? 1}${one.rejected?.length ? `; rejected: ${one.rejected.join(", ")}` : ""}`],
      one.resumed?.length ? ["Resumed", one.resumed.map((at) => `${at.cause} at character ${at.character} ${at.place}`).join("; ")] : null,
      ["First byte", seconds(one.first_byte)],
      ["First call", seconds(one.first_call)],
      ["Total time", seconds(one.seconds)],
      tokens(one) ? ["Tokens", tokens(one)] : null,
      one.held ? ["Most buffered", plural(one.held, "character")] : null,
      one.repairs?.length ? ["Repaired", one.repairs.join(", ")] : null,
      Object.keys(one.discarded ?? {}).length ? ["Dropped text", discarded(one.discarded).join(", ")] : null,
      Object.keys(one.quoted ?? {}).length ? ["Quotations", quotations(one.quoted).join(", ")] : null,
      one.prompt_cut ? ["Prompt cut", `${one.prompt_cut.read} of at least ${one.prompt_cut.least} tokens read`] : null,
      one.dropped?.length ? ["Left out", one.dropped.join(", ")] : null,
      one.error ? ["Error", one.error.message] : null,
      one.client ? ["Client key", one.client] : null,
      ["Request", one.request_id],
    ].filter((row) => row?.[1]);
    show(this.all, el("dl", {}, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
    if (this.tab === "timeline") this.fillTimeline();
    this.mark();
  }

  fillNote() {
    this.note.textContent = this.contents() ? "" : "Text is replaced by dots. Set contents = true to show it.";
  }

  mark() {
    for (const button of this.tabs.children) {
      const mine = button.dataset.tab === this.tab;
      button.setAttribute("aria-selected", mine);
      button.tabIndex = mine ? 0 : -1;
      if (mine) this.panel.setAttribute("aria-labelledby", button.id);
    }
  }

  fillTimeline() {
    const { replies } = this.told;
    const note = this.told.notes.find((note) => note.type === "differs");
    const differs = note && el("p", { class: "why rejected" }, `The exchange could not be repeated exactly (${note.why}), so this page may be wrong. Please report it.`);
    if (!replies.length) {
      const passed = this.told.summary.outcome === "passed";
      show(this.panel, differs, el("p", {}, passed ? "The request had no tools and was forwarded unchanged."
        : this.told.summary.outcome === "open" ? "Nothing has arrived yet." : "No reply was parsed."));
      return;
    }
    this.which = Math.min(this.which, replies.length - 1);
    const first = !this.picture;
    this.picture ??= new Picture(this.formats);
    show(this.replies, replies.length > 1 && replies.map((reply, i) => el("button", { type: "button", "aria-pressed": String(i === this.which),
      class: reply.rejected ? "rejected" : "", on: { click: () => this.choose(i) } },
      `Attempt ${reply.attempt}${reply.choice ? `, choice ${reply.choice}` : ""}${reply.rejected ? `: ${reply.rejected}` : ""}`)));
    const reply = replies[this.which];
    const notes = [
      differs,
      reply.rejected && el("p", { class: "why rejected" }, `This attempt was rejected: ${reply.rejected}. ${reply.sent.length ? "The client has its text, which the next attempt continues." : "The client did not see it."}`),
      ...reply.quoted.map((why) => el("p", { class: "why quotation" }, `A call was recognized as a quotation and sent as text: ${why}.`)),
    ];
    if (first || !this.panel.contains(this.picture.element)) show(this.panel, this.replies, el("div", { class: "notes" }), this.picture.element);
    show(this.panel.querySelector(".notes"), notes);
    const open = this.told.summary.outcome === "open";
    const near = reply.rejected ? null : this.told.summary.near?.character;
    this.picture.load(reply, { follow: first ? open : this.picture.at >= this.picture.last, character: near, resumed: this.told.summary.resumed });
  }

  choose(which) {
    this.which = which;
    this.picture.stop();
    this.fillTimeline();
  }

  async open(tab) {
    this.tab = tab;
    this.mark();
    this.picture?.stop();
    if (tab === "timeline") {
      if (this.told) this.fillTimeline();
      return;
    }
    show(this.panel, el("p", { role: "status" }, "…"));
    try {
      const view = { session: (told) => sessionView(told, this.id), prompt: promptView, bytes: bytesView, requests: requestsView }[tab];
      const made = view(await json(`exchanges/${this.id}/${tab}`));
      if (this.tab === tab && !this.left) show(this.panel, made);
    } catch (error) {
      show(this.panel, el("p", { class: "why" }, error.message));
    }
  }

  arrow(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = TABS.findIndex(([name]) => name === this.tab);
    const [name] = TABS[(at + step + TABS.length) % TABS.length];
    this.open(name);
    this.tabs.querySelector(`[data-tab="${name}"]`).focus();
    event.preventDefault();
    event.stopPropagation();
  }

  // Runs a button's action. Its result stays visible until the next action, even if the exchange is loaded again.
  async run(call) {
    this.done.textContent = "";
    try {
      await call();
    } catch (error) {
      this.done.textContent = error.message;
    }
  }

  async copied(what, word) {
    if (await copy(what)) this.done.textContent = `Copied ${word}.`;
  }

  async save() {
    const body = await text(`exchanges/${this.id}/recording`);
    const link = el("a", { href: URL.createObjectURL(new Blob([body], { type: "application/jsonl" })), download: `${this.told.summary.request_id}.jsonl` });
    link.click();
    URL.revokeObjectURL(link.href);
    this.done.textContent = "Recording saved. streamtool inspect FILE shows it; streamtool parse --replay FILE replays it.";
  }

  key(event) {
    if (event.key === "Escape") location.hash = "#/";
    else if (this.tab === "timeline") this.picture?.key(event);
  }
}
