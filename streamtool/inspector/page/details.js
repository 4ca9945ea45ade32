// What stands behind the tabs beside the timeline: the prompt, the bytes, the requests.

import { el, plural, seconds } from "./dom.js";

// A text with its marks, and with what a cache keeps of it.
function marked(text, marks, kept) {
  const bounds = [...new Set([0, text.length, Math.min(Math.max(kept, 0), text.length), ...marks.flatMap(([start, end]) => [start, end])])].sort((a, b) => a - b);
  return bounds.slice(1).map((end, i) => {
    const start = bounds[i];
    const mark = marks.find(([from, to]) => from <= start && end <= to);
    return el("span", { class: [mark ? `mark ${mark[2].replace(/\W+/g, "-")}` : "", end <= kept ? "kept" : "new"].join(" ").trim(),
      title: mark?.[2] }, text.slice(start, end));
  });
}

export function promptView({ prompts }) {
  if (!prompts.length) return el("p", {}, "The upstream was not asked.");
  return el("div", { class: "prompts" }, prompts.map(({ attempt, messages, before, removed }) => {
    let kept = before?.kept ?? 0;
    const shown = messages.map(({ role, text, marks }) => {
      const part = marked(text, marks, before ? Math.min(kept, text.length) : text.length);
      kept -= text.length;
      return el("section", { class: `message ${role}` }, el("h4", {}, role), el("pre", { tabindex: 0, role: "region", "aria-label": `${role} message` }, part));
    });
    return el("section", {},
      el("h3", {}, `Attempt ${attempt}`),
      el("p", {}, before
        ? `A prefix cache keeps ${plural(before.kept, "character")} of ${before.of.toLocaleString("en")} (${Math.round((100 * before.kept) / before.of)} %): they begin the prompt of exchange ${before.id} too. What is new is underlined. ${removed ? `${plural(removed, "character")} that followed there stand here no more.` : "Nothing that stood there is gone."}`
        : "No earlier prompt begins like this one."),
      el("ul", { class: "legend", "aria-label": "Marks" },
        [["the-tools", "the tools, as they are taught"], ["call", "an earlier call"], ["result", "its result"], ["the-reply-s-instructions", "instructions for this reply"]]
          .map(([name, word]) => el("li", {}, el("i", { class: `swatch mark ${name}` }), word))),
      shown);
  }));
}

export function bytesView({ bytes, known }) {
  if (!bytes.length) return el("p", {}, "The client got nothing.");
  if (!known) return el("p", {}, "This recording does not hold the bytes.");
  return el("div", {},
    el("p", {}, `${plural(bytes.length, "write")}, ${plural(bytes.reduce((sum, [, text]) => sum + text.length, 0), "character")}.`),
    el("ol", { class: "bytes" }, bytes.slice(0, 2000).map(([at, text]) => el("li", {}, el("span", { class: "when" }, seconds(at)), el("pre", {}, text)))),
    bytes.length > 2000 && el("p", {}, "The first 2,000 are shown; the recording has all of them."));
}

const pretty = (value) => el("pre", { tabindex: 0, role: "region", "aria-label": "JSON" }, JSON.stringify(value, null, 2) ?? "–");

export function requestsView({ came, went, record }) {
  return el("div", { class: "requests" },
    el("section", {}, el("h3", {}, "As it came"), pretty(came)),
    went.map(({ attempt, seconds: at, upstream, body }) =>
      el("section", {}, el("h3", {}, `As it went, attempt ${attempt}${upstream ? `, to ${upstream}` : ""} (${seconds(at)})`), pretty(body))),
    record && el("section", {}, el("h3", {}, "What the log says"), pretty(record)));
}
