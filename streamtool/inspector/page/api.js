// Requests to the server. If a key is required, it is stored in this tab only.

import { byId } from "./dom.js";

const KEY = "streamtool-key";
let asking = null;

function headers() {
  const key = sessionStorage.getItem(KEY);
  return key ? { authorization: `Bearer ${key}` } : {};
}

// Asks for the key, once for all requests that are waiting for it.
function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key");
    byId("key-wrong").hidden = !sessionStorage.getItem(KEY);
    byId("key-value").value = "";
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(KEY, byId("key-value").value);
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

async function ask(path, options = {}) {
  for (;;) {
    const answer = await fetch(`/inspect/${path}`, { ...options, headers: { ...options.headers, ...headers() } });
    if (answer.status === 401) {
      await askForKey();
      continue;
    }
    if (answer.ok) return answer;
    let why = `${answer.status}`;
    try {
      why = (await answer.json()).error ?? why;
    } catch { /* not JSON: report the status */ }
    throw new Error(why);
  }
}

export const json = async (path) => (await ask(path)).json();
export const text = async (path) => (await ask(path)).text();
export const post = async (path, body) =>
  (await ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })).json();

// As long as the page is open, calls `told` with each change, and `state` when the connection opens or fails.
export async function watch(told, state) {
  for (let pause = 500; ; pause = Math.min(pause * 2, 10_000)) {
    try {
      const answer = await ask("events");
      state(true);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        rest += value;
        const events = rest.split("\n\n");
        rest = events.pop();
        for (const event of events) if (event.startsWith("data: ")) told(JSON.parse(event.slice(6)));
        pause = 500;
      }
      state(false, "the server closed the connection");
    } catch (error) {
      state(false, error.message);
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

let table = null;
export const formats = () =>
  (table ??= json("formats").then((told) => new Map(told.formats.map((form) => [form.name, form]))));
