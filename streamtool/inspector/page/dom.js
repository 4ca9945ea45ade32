// Creates elements. Text is inserted only as text nodes, so nothing from a model, a client or a file becomes markup.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") for (const [event, call] of Object.entries(value)) made.addEventListener(event, call);
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function show(place, ...children) {
  place.replaceChildren(...children.flat().filter(Boolean));
}

// Returns the verdict on an exchange or a text: what happened, and the next step.
export const verdict = (found) => (found ? [found.text, found.step && el("span", { class: "next-step" }, ` ${found.step}`)] : []);

export const byId = (id) => document.getElementById(id);

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

// Returns the text in quotes, with control characters escaped, and shortened in the middle if it is too long.
export function quoted(text, most = 120) {
  const shown = text.length > most ? `${text.slice(0, most / 2)} … ${text.slice(-most / 2)}` : text;
  return JSON.stringify(shown);
}

// Returns the first index in a sorted list for which `below` is false.
export function bisect(length, below) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (below(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = byId("copied-text");
    field.value = text;
    byId("copied").showModal();
    field.select();
    return false;
  }
}
