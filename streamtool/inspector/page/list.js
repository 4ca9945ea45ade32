// The live list of exchanges.

import { byId, el, plural, seconds, show } from "./dom.js";
import { FILTERS, colour, found, outcome, speed, title } from "./words.js";

export class List {
  constructor() {
    this.known = new Map();
    this.rows = new Map();
    this.cleared = new Set();
    this.waiting = null;
    this.place = byId("exchanges");
    this.search = byId("search");
    this.current = null;
    this.chips = FILTERS.map(([word, outcomes]) => {
      const count = el("span", { class: "number" });
      const chip = el("button", { type: "button", "aria-pressed": "false", "data-filter": word, on: { click: () => this.choose(word) } }, `${word} `, count);
      return { word, outcomes, chip, count };
    });
    show(byId("chips"), this.chips.map(({ chip }) => chip));
    this.pause = byId("pause");
    this.pause.addEventListener("click", () => this.toggle());
    byId("clear").addEventListener("click", () => this.clear());
    this.search.addEventListener("input", () => this.filter());
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    this.place.addEventListener("keydown", (event) => this.move(event));
    this.choose("all");
  }

  choose(word) {
    this.chosen = this.chips.find((one) => one.word === word);
    for (const one of this.chips) one.chip.setAttribute("aria-pressed", String(one === this.chosen));
    this.filter();
  }

  // While the list is paused, changes wait.
  toggle() {
    const waiting = this.waiting;
    this.waiting = waiting ? null : { exchanges: new Map(), gone: [] };
    this.pause.setAttribute("aria-pressed", String(!waiting));
    this.pause.textContent = waiting ? "Pause" : "Resume";
    if (waiting) this.update({ exchanges: [...waiting.exchanges.values()], gone: waiting.gone });
  }

  // Hides the exchanges that have ended. The server keeps them.
  clear() {
    for (const [id, one] of this.known) if (one.outcome !== "open") this.cleared.add(id);
    this.filter();
  }

  update({ exchanges, gone = [] }) {
    if (this.waiting) {
      for (const one of exchanges) this.waiting.exchanges.set(one.id, one);
      this.waiting.gone.push(...gone);
      return;
    }
    for (const id of gone) {
      this.rows.get(id)?.remove();
      this.rows.delete(id);
      this.known.delete(id);
    }
    for (const one of exchanges) {
      const fresh = !this.known.has(one.id);
      this.known.set(one.id, one);
      const row = this.rows.get(one.id) ?? el("li", {});
      this.fill(row, one);
      this.rows.set(one.id, row);
      if (fresh) this.place.prepend(row);
    }
    this.filter();
  }

  fill(row, one) {
    const link = row.firstElementChild ?? el("a", { href: `#/exchange/${encodeURIComponent(one.id)}` });
    const rate = speed(one);
    const facts = [
      title(one) !== one.model && one.model,
      one.outcome !== "open" && one.seconds != null && seconds(one.seconds),
      one.tokens?.output ? `${one.tokens.estimated ? "≈ " : ""}${plural(one.tokens.output, "token")}` : null,
      rate && `${Math.round(rate)}/s`,
      found(one.found),
      one.attempts > 1 && `${one.attempts} attempts`,
      one.resumed?.length && "resumed",
      one.repairs?.length && "repaired",
      Object.keys(one.quoted ?? {}).length && "quoted",
      one.error?.message,
    ].filter(Boolean);
    link.replaceChildren(
      el("span", { class: `outcome ${one.outcome} ${colour(one)}` }, outcome(one)),
      el("span", { class: "title" }, title(one)),
      el("span", { class: "when" }, one.at ? new Date(one.at * 1000).toLocaleTimeString("en-GB") : ""),
      el("span", { class: "facts" }, facts.join(" · ") || `${one.protocol}, ${one.mode}`),
    );
    if (!row.firstElementChild) row.append(link);
    if (one.id === this.current) link.setAttribute("aria-current", "page");
    row.dataset.outcome = one.outcome;
    row.dataset.words = [one.model, one.upstream_model, one.request_id, one.client, one.protocol, one.mode, one.upstream,
      one.outcome, outcome(one), one.asked, one.called, ...(one.rejected ?? []), ...facts].join(" ").toLowerCase();
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const counts = new Map(this.chips.map((one) => [one, 0]));
    let shown = 0;
    for (const [id, row] of this.rows) {
      const found = !this.cleared.has(id) && words.every((word) => row.dataset.words.includes(word));
      if (found) for (const one of this.chips) if (one.outcomes?.includes(row.dataset.outcome) ?? true) counts.set(one, counts.get(one) + 1);
      row.hidden = !found || !(this.chosen.outcomes?.includes(row.dataset.outcome) ?? true);
      shown += !row.hidden;
    }
    for (const [one, count] of counts) one.count.textContent = count;
    const all = this.rows.size;
    const told = all === 0 ? "No exchanges yet. Send a request with tools." : shown === all ? plural(all, "exchange") : `${shown} of ${all} exchanges`;
    if (byId("count").textContent !== told) byId("count").textContent = told;
  }

  select(id) {
    this.rows.get(this.current)?.firstElementChild.removeAttribute("aria-current");
    this.current = id;
    this.rows.get(id)?.firstElementChild.setAttribute("aria-current", "page");
  }

  // Moves through the list with the arrow keys.
  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const links = [...this.place.children].filter((row) => !row.hidden).map((row) => row.firstElementChild);
    const next = links[links.indexOf(document.activeElement) + step];
    if (next) {
      event.preventDefault();
      next.focus();
    }
  }
}
