// Router: shows the page named by the URL's fragment.

import { watch } from "./api.js";
import { byId, el, show } from "./dom.js";
import { ExchangePage } from "./exchange.js";
import { List } from "./list.js";
import { Playground } from "./playground.js";

const list = new List();
const content = byId("content");
let page = null;
let contents = true;

function route() {
  page?.leave();
  page = null;
  const [, kind, id] = location.hash.split("/");
  document.body.dataset.page = kind || "list";
  for (const link of document.querySelectorAll("nav a"))
    link.toggleAttribute("aria-current", link.dataset.page === (kind === "try" ? "try" : "list"));
  list.select(kind === "exchange" ? decodeURIComponent(id) : null);
  if (kind === "first") first();
  else if (kind === "exchange") page = new ExchangePage(content, decodeURIComponent(id), () => contents);
  else if (kind === "try") page = new Playground(content);
  else welcome();
  document.title = `${{ exchange: `Exchange ${id}`, try: "Playground" }[kind] ?? "Exchanges"} – streamtool inspector`;
  if (kind) content.focus({ preventScroll: true });
}

// Shows the first exchange as soon as there is one.
function first() {
  const [id] = list.known.keys();
  if (id !== undefined) location.replace(`#/exchange/${encodeURIComponent(id)}`);
  else show(content, el("p", { role: "status" }, "The first exchange will appear here as soon as it begins."));
}

function welcome() {
  show(content, el("section", { class: "welcome" },
    el("h2", {}, "Follow a reply"),
    el("p", {}, "Choose an exchange. Its timeline shows what the model wrote, when the client received it, what was buffered, and why."),
    el("p", {}, "Was a call missed? Check its text in the timeline: the colors show how each character was parsed. ",
      "The ", el("a", { href: "#/try" }, "playground"), " parses any text you enter."),
    el("dl", { class: "keys" },
      ...[["/", "search"], ["↑ ↓", "move through the list"], ["space", "play or pause"], ["← →", "previous or next delta"],
        ["Home End", "go to the start or end"], ["+ − 0", "zoom in, zoom out, show all"]].flatMap(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)])),
  ));
}

addEventListener("hashchange", route);
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.matches("input, textarea, select")) {
    event.preventDefault();
    if (matchMedia("(max-width: 760px)").matches) location.hash = "#/";
    byId("search").focus();
  } else page?.key(event);
});
route();
watch((told) => {
  contents = told.contents;
  list.update(told);
  list.select(list.current);
  if (location.hash === "#/first") first();
  const shown = page instanceof ExchangePage && told.exchanges.find((one) => one.id === page.id);
  if (shown) page.changed(shown);
}, (connected, why = "") => {
  byId("connection").textContent = connected ? "live" : `not connected: ${why}`;
  byId("connection").className = connected ? "live" : "lost";
});
