// The live list of exchanges.

import { byId, el, plural, seconds } from "./dom.js";

const WORDS = {
  open: "open", calls: "calls", text: "text", incomplete: "cut off", unmet: "unmet", left: "disconnected",
  passed: "forwarded", error: "error", cut: "cut",
};

export class List {
  constructor() {
    this.known = new Map();
    this.rows = new Map();
    this.place = byId("exchanges");
    this.search = byId("search");
    this.outcome = byId("outcome");
    this.current = null;
    for (const [value, word] of Object.entries(WORDS)) this.outcome.append(el("option", { value }, word));
    this.search.addEventListener("input", () => this.filter());
    this.outcome.addEventListener("input", () => this.filter());
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    this.place.addEventListener("keydown", (event) => this.move(event));
  }

  update({ exchanges, gone = [] }) {
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
    const calls = one.calls ? plural(one.calls, "call") : null;
    const form = Object.keys(one.found ?? {}).join(", ");
    const facts = [
      one.first_byte != null && `first byte ${seconds(one.first_byte)}`,
      one.first_call != null && `first call ${seconds(one.first_call)}`,
      one.held ? `buffered ${one.held}` : null,
      one.attempts > 1 ? `${one.attempts} attempts` : null,
      ...(one.rejected ?? []),
      ...Object.keys(one.quoted ?? {}).length ? ["quoted"] : [],
      one.repairs?.length ? `repaired` : null,
      one.error ? one.error.message : null,
    ].filter(Boolean);
    link.replaceChildren(
      el("span", { class: `outcome ${one.outcome}` }, WORDS[one.outcome] ?? one.outcome),
      el("span", { class: "model" }, one.model || "(no model)"),
      el("span", { class: "when" }, one.at ? new Date(one.at * 1000).toLocaleTimeString("en-GB") : ""),
      el("span", { class: "facts" }, [calls, form, ...facts].filter(Boolean).join(" · ") || `${one.protocol}, ${one.mode}`),
    );
    if (!row.firstElementChild) row.append(link);
    if (one.id === this.current) link.setAttribute("aria-current", "page");
    row.dataset.outcome = one.outcome;
    row.dataset.words = [one.model, one.upstream_model, one.request_id, one.client, one.protocol, one.mode, form, one.upstream,
      one.outcome, ...facts].join(" ").toLowerCase();
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of this.rows.values()) {
      const fits = (!this.outcome.value || row.dataset.outcome === this.outcome.value) &&
        words.every((word) => row.dataset.words.includes(word));
      row.hidden = !fits;
      shown += fits;
    }
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
