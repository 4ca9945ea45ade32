// Contents of the other tabs: session, prompt, bytes and requests.

import { el, plural, seconds } from "./dom.js";
import { colour, outcome, tokens } from "./words.js";

// Returns one turn of a session: what the client added, then the reply.
function turn({ id, summary, earlier, waited, inputs, text, calls }, shown) {
  const told = (word, body, kind = "", fact = null) => el("li", { class: `said ${kind}` },
    el("h4", {}, word, fact && el("span", { class: "when" }, ` ${fact}`)), el("pre", {}, body));
  const ran = inputs.filter(({ kind }) => kind === "result").length;
  const after = waited !== null && (ran
    ? `${plural(ran, "result")}, ${seconds(waited)} after the call${ran > 1 ? "s" : ""}` : `${seconds(waited)} after the reply`);
  const facts = [summary.seconds != null && seconds(summary.seconds), tokens(summary), summary.verdict?.text].filter(Boolean);
  return [
    earlier > 0 && el("li", { class: "between" }, `${plural(earlier, "earlier message")} of which no exchange is stored`),
    after && el("li", { class: "between" }, after),
    inputs.map((one) => one.kind === "user" ? told("User", one.text, "user")
      : told(`Result of ${one.name}`, one.text || "(empty)", `tool${one.error ? " failed" : ""}`, one.error && "error")),
    el("li", { class: `reply${id === shown ? " shown" : ""}` },
      el("h4", {}, el("a", { href: `#/exchange/${encodeURIComponent(id)}`, "aria-current": id === shown && "true" }, `Exchange ${id}`), " ",
        el("span", { class: `outcome ${colour(summary)}` }, outcome(summary)), el("span", { class: "when" }, ` ${facts.join(" · ")}`)),
      text.trim() && el("pre", {}, text),
      calls.map((call) => el("pre", { class: "call" }, `${call.name}(${call.arguments})`)),
      summary.error && el("p", { class: "why" }, summary.error.message)),
  ];
}

export function sessionView({ turns }, shown) {
  const [first, last] = [turns[0].summary, turns[turns.length - 1].summary];
  const whole = first.at && last.at && last.seconds != null ? `, ${seconds(last.at + last.seconds - first.at)} in all` : "";
  const calls = turns.reduce((sum, { calls }) => sum + calls.length, 0);
  return el("div", {},
    el("p", {}, `${plural(turns.length, "exchange")}, ${plural(calls, "call")}${whole}.`),
    el("ol", { class: "session", role: "list" }, turns.map((one) => turn(one, shown)).flat(2)));
}

// Returns the text as elements, split at its marks and at the end of the cached prefix.
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
  if (!prompts.length) return el("p", {}, "No request was sent to the upstream.");
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
        ? `A prefix cache can reuse ${plural(before.kept, "character")} of ${before.of.toLocaleString("en")} (${Math.round((100 * before.kept) / before.of)} %) from the prompt of exchange ${before.id}. New text is underlined. ${removed ? `Removed from the earlier prompt: ${plural(removed, "character")}.` : "Nothing was removed from the earlier prompt."}`
        : "No earlier prompt begins with the same text."),
      el("ul", { class: "legend", "aria-label": "Marks" },
        [["the-tools", "tool prompt"], ["call", "earlier call"], ["result", "result"], ["the-reply-s-instructions", "turn instructions"]]
          .map(([name, word]) => el("li", {}, el("i", { class: `swatch mark ${name}` }), word))),
      shown);
  }));
}

// Returns how many characters two texts have in common at the beginning and, apart from those, at the end.
function common(one, other) {
  const most = Math.min(one.length, other.length);
  let begin = 0;
  while (begin < most && one[begin] === other[begin]) begin++;
  let end = 0;
  while (end < most - begin && one[one.length - 1 - end] === other[other.length - 1 - end]) end++;
  return [begin, end];
}

export function bytesView({ bytes, known }) {
  if (!bytes.length) return el("p", {}, "Nothing was sent to the client.");
  if (!known) return el("p", {}, "This recording does not include the bytes.");
  let before = "";
  const rows = bytes.slice(0, 2000).map(([at, text]) => {
    const [begin, end] = common(text, before);
    before = text;
    const same = (part) => part && el("span", { class: "same" }, part);
    return el("li", {}, el("span", { class: "when" }, seconds(at)),
      el("pre", {}, same(text.slice(0, begin)), el("span", { class: "changed" }, text.slice(begin, text.length - end)), same(text.slice(text.length - end))));
  });
  const list = el("ol", { class: "bytes" }, rows);
  const only = el("input", { type: "checkbox", on: { change: () => list.classList.toggle("only-changes", only.checked) } });
  return el("div", {},
    el("p", {}, `${plural(bytes.length, "write")}, ${plural(bytes.reduce((sum, [, text]) => sum + text.length, 0), "character")}. What a write repeats of the one before it is dimmed. `,
      el("label", {}, only, " Only the changes")),
    list,
    bytes.length > 2000 && el("p", {}, "Only the first 2,000 writes are shown; the recording contains all of them."));
}

const pretty = (value) => el("pre", { tabindex: 0, role: "region", "aria-label": "JSON" }, JSON.stringify(value, null, 2) ?? "–");

export function requestsView({ came, went, record }) {
  return el("div", { class: "requests" },
    el("section", {}, el("h3", {}, "As received"), pretty(came)),
    went.map(({ attempt, seconds: at, upstream, body }) =>
      el("section", {}, el("h3", {}, `As sent, attempt ${attempt}${upstream ? `, to ${upstream}` : ""} (${seconds(at)})`), pretty(body))),
    record && el("section", {}, el("h3", {}, "Log record"), pretty(record)));
}
