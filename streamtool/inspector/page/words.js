// The words for what happened in an exchange.

import { plural } from "./dom.js";

// Outcome → its word in the list, and its colour.
export const OUTCOMES = {
  open: ["open", "busy"], calls: ["called", "good"], text: ["no call", "plain"], incomplete: ["cut off", "bad"],
  unmet: ["gave up", "bad"], left: ["client left", "plain"], passed: ["forwarded", "plain"], error: ["error", "bad"],
  cut: ["recording ends", "bad"],
};

// The filters of the list: the outcomes that each one shows.
export const FILTERS = [
  ["all", null], ["called", ["calls"]], ["no call", ["text"]], ["failed", ["error", "incomplete", "unmet", "cut"]],
  ["other", ["open", "left", "passed"]],
];

const DISCARDED = {
  malformed: "unreadable call", rejected: "rejected call", cut_off: "call that was cut off", unknown: "unknown tool",
  limit: "limit exceeded", invented: "invented result", noise: "leftover markup",
};

export const outcome = (one) => {
  const [word] = OUTCOMES[one.outcome] ?? [one.outcome];
  if (one.outcome === "calls") return plural(one.calls, "call");
  if (one.outcome === "error" && one.error?.status) return `error ${one.error.status}`;
  if (one.outcome === "text" && one.verdict?.kind === "answered with results") return "answer";
  return one.outcome === "text" && !one.tools ? "text" : word;
};

export const colour = (one) => (one.outcome === "text" && !one.tools ? "plain" : OUTCOMES[one.outcome]?.[1] ?? "plain");

export const title = (one) => one.called || one.asked || one.model || "(no model)";

export const discarded = (reasons) =>
  Object.entries(reasons ?? {}).map(([why, count]) => `${plural(count, "character")} dropped: ${DISCARDED[why] ?? why}`);

export const quotations = (reasons) =>
  Object.entries(reasons ?? {}).map(([why, count]) => `${plural(count, "quoted call")} kept as text: ${why}`);

export const found = (formats) => Object.entries(formats ?? {}).map(([name, count]) => `${plural(count, "call")} in ${name}`).join(", ");

// Tokens per second of the reply, after its first byte.
export const speed = (one) => {
  const time = (one.seconds ?? 0) - (one.first_byte ?? 0);
  return one.tokens?.output > 1 && time > 0.02 ? one.tokens.output / time : null;
};

export const tokens = ({ tokens: of }) => {
  if (!of || !(of.input || of.output)) return null;
  const cached = of.cached ? `, ${of.cached.toLocaleString("en")} cached` : "";
  return `${of.estimated ? "≈ " : ""}${of.input.toLocaleString("en")} tokens in${cached}, ${of.output.toLocaleString("en")} out`;
};
