// Picture of one reply: the model's text above, what the client received below, and buffered text between them. The
// canvas shows the whole reply over time; the two texts below it show the reply up to the selected delta.

import { bisect, el, plural, quoted, seconds } from "./dom.js";

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 5, 20, 100];
const KINDS = {
  text: "text", reasoning: "reasoning", syntax: "call syntax", argument: "call arguments", repair: "repaired",
  discard: "discarded", quotation: "quotation, sent as text", held: "not yet known",
};
const LANES = { top: 20, written: 40, gap: 44, received: 40 };
const HEIGHT = LANES.top + LANES.written + LANES.gap + LANES.received + 38;
const MOST = 2000; // the largest magnification

export class Picture {
  constructor(formats) {
    this.formats = formats;
    this.at = 0;
    this.playing = null;
    this.byDelta = false;
    this.view = [0, 1]; // the visible part of the whole reply
    this.dragged = null;
    this.canvas = el("canvas", { class: "strip", height: HEIGHT, role: "img" });
    this.drawn = document.createElement("canvas");
    this.slider = el("input", { type: "range", min: 0, step: 1, value: 0, class: "slider", "aria-label": "Delta",
      on: { input: () => { this.stop(); this.go(Number(this.slider.value)); } } });
    this.play = el("button", { type: "button", on: { click: () => this.toggle() } }, "Play");
    this.speed = el("select", { "aria-label": "Speed" },
      SPEEDS.map((speed) => el("option", { value: speed, selected: speed === 1 }, `${speed} ×`)));
    this.scale = el("select", { "aria-label": "Scale", on: { input: () => { this.byDelta = this.scale.value === "delta"; this.paint(); } } },
      el("option", { value: "time" }, "by time"), el("option", { value: "delta" }, "by delta"));
    this.step = el("dl", { class: "step" });
    const told = el("div", { class: "told", role: "region", "aria-label": "Selected delta" }, this.step);
    this.spoken = el("p", { class: "unseen", role: "status" });
    this.written = el("pre", { class: "written", tabindex: 0, role: "region", "aria-label": "What the model wrote" });
    this.received = el("pre", { class: "received", tabindex: 0, role: "region", "aria-label": "What the client received" });
    const button = (label, what, call) => el("button", { type: "button", "aria-label": what, title: what, on: { click: call } }, label);
    this.element = el("div", { class: "picture" },
      el("div", { class: "controls", role: "group", "aria-label": "Playback" },
        button("|◀", "Go to the start", () => this.seek(0)),
        button("◀", "Previous delta", () => this.seek(this.at - 1)),
        this.play,
        button("▶", "Next delta", () => this.seek(this.at + 1)),
        button("▶|", "Go to the end", () => this.seek(this.last)),
        el("label", {}, el("span", { class: "unseen" }, "Speed"), this.speed), el("label", {}, el("span", { class: "unseen" }, "Scale"), this.scale),
        button("+", "Zoom in", () => this.zoom(2)), button("−", "Zoom out", () => this.zoom(0.5)), button("fit", "fit: show the whole reply", () => this.look(0, 1))),
      this.canvas, this.slider, this.spoken,
      el("div", { class: "texts" },
        el("section", {}, el("h3", {}, "The model wrote"), this.written),
        el("section", {}, el("h3", {}, "The client received"), this.received)),
      told,
      el("ul", { class: "legend", "aria-label": "Colors" },
        Object.entries(KINDS).map(([kind, word]) => el("li", {}, el("i", { class: `swatch ${kind}` }), word)),
        el("li", {}, el("i", { class: "swatch waited" }), "buffered, then released")));
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => this.describe(this.at));
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointerup", (event) => this.release(event));
    this.canvas.addEventListener("dblclick", () => this.look(0, 1));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    for (const place of [this.written, this.received]) {
      place.addEventListener("pointerover", (event) => { if (event.target.dataset.step) this.describe(Number(event.target.dataset.step), event.target); });
      place.addEventListener("pointerout", () => this.describe(this.at));
      place.addEventListener("click", (event) => { if (event.target.dataset.step) { this.stop(); this.seek(Number(event.target.dataset.step)); } });
    }
    this.resized = new ResizeObserver(() => this.paint());
    this.resized.observe(this.canvas);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.repaint = () => this.paint();
    this.scheme.addEventListener("change", this.repaint);
  }

  leave() {
    this.stop();
    this.resized.disconnect();
    this.scheme.removeEventListener("change", this.repaint);
  }

  get last() {
    return Math.max(this.steps.length - 1, 0);
  }

  // Shows a reply. If it continues the current one, existing elements are kept.
  // `resumed` names the places where another attempt continued it.
  load(reply, { follow = true, character = null, resumed = [] } = {}) {
    const before = this.reply;
    const grows = before && before.parser === reply.parser && reply.text.startsWith(before.text);
    this.reply = reply;
    this.steps = reply.steps;
    this.calls = this.callsOf(reply);
    this.seams = new Map(resumed.map(({ character: at, cause }) => [this.steps.findIndex(([, start]) => start >= at), cause]));
    this.fillWritten(grows ? before.segments : []);
    this.fillReceived(grows ? before.sent : []);
    this.slider.max = this.last;
    this.describeAll();
    this.at = -1;
    if (!grows) this.view = [0, 1];
    this.paint();
    this.go(follow ? this.last : grows ? Math.min(Number(this.slider.value), this.last) : this.interesting(character));
  }

  // Returns the delta with this character or, without one, the first delta that may be or is part of a call; the last one
  // if there is none.
  interesting(character) {
    const place = character !== null && character !== undefined ? this.steps.findIndex(([, , end]) => end > character)
      : this.steps.findIndex(([, , , , held, , , events]) => held || events.some((event) => event.type === "call_start"));
    return place < 0 ? this.last : place;
  }

  // Returns, for each step, the call that it belongs to. Used to describe the step.
  callsOf(reply) {
    const found = [];
    let current = null;
    for (const step of reply.steps) {
      for (const event of step[7]) {
        if (event.type === "call_start") current = event;
        else if (event.type === "call_end") current = { ...current, ended: event };
      }
      found.push(current);
      if (current?.ended) current = null;
    }
    return found;
  }

  fillWritten(before) {
    const { segments, text } = this.reply;
    let same = 0;
    while (same < before.length && same < segments.length && before[same].every((value, i) => value === segments[same][i])) same++;
    while (this.written.childNodes.length > same) this.written.lastChild.remove();
    const made = document.createDocumentFragment();
    this.spans = [...(this.spans ?? []).slice(0, same)];
    for (let i = same; i < segments.length; i++) {
      const [start, end, kind, came, left, why] = segments[i];
      const waited = left !== came;
      const span = el("span", { class: `${kind}${waited ? " waited" : ""}${this.seams.has(came) && segments[i - 1]?.[3] !== came ? " seam" : ""}`, "data-step": came, "data-segment": i,
        title: why ? `buffered: ${why}` : KINDS[kind] }, text.slice(start, end));
      this.spans.push(span);
      made.append(span);
    }
    this.written.append(made);
    this.arrives = segments.map(([, , , came]) => came);
    this.leaving = segments.map((segment, i) => [segment[4] ?? Infinity, i]).filter(([left, i]) => left !== segments[i][3]);
  }

  fillReceived(before) {
    const pieces = before.length && this.pieces ? this.pieces : [];
    if (!pieces.length) this.received.replaceChildren();
    this.pieces = pieces;
    const made = document.createDocumentFragment();
    const put = (step, kind, text, title) => {
      const span = el("span", { class: kind, "data-step": step, title }, text);
      this.pieces.push([step, span]);
      made.append(span);
    };
    for (let i = before.length; i < this.reply.sent.length; i++) {
      const [, step, events] = this.reply.sent[i];
      for (const event of events) {
        switch (event.type) {
          case "text_delta": put(step, "text", event.text); break;
          case "reasoning_delta": put(step, "reasoning", event.text ?? ""); break;
          case "call_start": put(step, "call", `\n● ${event.name}(`, `call ${event.id ?? ""}`); break;
          case "arguments_delta": put(step, "argument", event.text); break;
          case "call_end": put(step, "call", event.complete ? ")\n" : " … cut off)\n"); break;
          case "failure": put(step, "discard", `\n✗ ${event.message}\n`); break;
          case "finish": put(step, "end", `\n[${event.reason}]`); break;
        }
      }
    }
    this.received.append(made);
  }

  describeAll() {
    const { steps, sent, segments } = this.reply;
    const held = segments.filter(([, , , came, left]) => left !== came).length;
    this.canvas.setAttribute("aria-label",
      `${plural(steps.length, "step")} in ${seconds(this.end)}: ${plural(sent.length, "event")} to the client, ${plural(held, "passage")} buffered. Use the slider below to step through them.`);
  }

  // --- positions

  get end() {
    return Math.max(this.steps.at(-1)?.[0] ?? 0, this.reply.sent.at(-1)?.[0] ?? 0);
  }

  get begin() {
    return this.steps[0]?.[0] ?? 0;
  }

  x(step, time) {
    const part = this.byDelta ? (step + 0.5) / Math.max(this.steps.length, 1) : (time - this.begin) / Math.max(this.end - this.begin, 1e-6);
    return 4 + ((part - this.view[0]) / (this.view[1] - this.view[0])) * (this.width - 8);
  }

  // Returns the part of the whole reply at a position of the pointer.
  partAt(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    return this.view[0] + ((x - 4) / (this.width - 8)) * (this.view[1] - this.view[0]);
  }

  // Shows a part of the reply, from 0 to 1.
  look(from, to) {
    const size = Math.min(Math.max(to - from, 1 / MOST), 1);
    const begin = Math.min(Math.max(from, 0), 1 - size);
    this.view = [begin, begin + size];
    this.paint();
  }

  zoom(factor, around = null) {
    const [from, to] = this.view;
    const selected = from + ((this.xOf(this.at) - 4) / (this.width - 8)) * (to - from);
    const middle = around ?? (from <= selected && selected <= to ? selected : (from + to) / 2);
    this.look(middle - (middle - from) / factor, middle + (to - middle) / factor);
  }

  wheel(event) {
    const size = this.view[1] - this.view[0];
    if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY / 200), this.partAt(event));
    else if (size < 1 && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) {
      const way = ((event.deltaX || event.deltaY) / this.width) * size;
      this.look(this.view[0] + way, this.view[1] + way);
    } else return;
    event.preventDefault();
  }

  // A click selects a delta; a drag shows the part of the reply between its ends.
  press(event) {
    this.stop();
    this.dragged = { from: this.partAt(event), x: event.clientX, wide: false };
    if (event.pointerType === "mouse") this.canvas.setPointerCapture(event.pointerId);
  }

  release(event) {
    const { dragged } = this;
    this.dragged = null;
    if (!dragged) return;
    if (dragged.wide) this.look(Math.min(dragged.from, this.partAt(event)), Math.max(dragged.from, this.partAt(event)));
    else this.seek(this.stepAt(event));
  }

  xOf(step) {
    return this.x(step, this.steps[Math.min(step, this.last)]?.[0] ?? 0);
  }

  stepAt(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    const place = bisect(this.steps.length, (i) => this.xOf(i) < x);
    const nearer = place > 0 && (place > this.last || x - this.xOf(place - 1) < this.xOf(place) - x);
    return nearer ? place - 1 : Math.min(place, this.last);
  }

  // --- drawing

  paint() {
    if (!this.reply) return;
    this.width = this.canvas.clientWidth;
    if (!this.width) return;
    const ratio = devicePixelRatio || 1;
    for (const canvas of [this.canvas, this.drawn]) {
      canvas.width = this.width * ratio;
      canvas.height = HEIGHT * ratio;
    }
    const style = getComputedStyle(this.element);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.colours = Object.fromEntries([...Object.keys(KINDS), "call", "ink", "faint", "line", "hold", "head"].map((name) => [name, colour(name)]));
    const draw = this.drawn.getContext("2d");
    draw.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw.clearRect(0, 0, this.width, HEIGHT);
    this.paintLanes(draw);
    this.paintHolds(draw);
    this.paintSteps(draw);
    this.paintSent(draw);
    this.paintSeams(draw);
    this.paintHead();
  }

  // Draws a dashed line where another attempt continues the reply.
  paintSeams(draw) {
    draw.fillStyle = draw.strokeStyle = this.colours.discard;
    for (const [step, cause] of this.seams) {
      const x = Math.round(this.xOf(step)) - 1.5;
      if (step < 0 || x < 0 || x > this.width) continue;
      draw.setLineDash([4, 3]);
      draw.beginPath();
      draw.moveTo(x, 2);
      draw.lineTo(x, HEIGHT - 36);
      draw.stroke();
      draw.setLineDash([]);
      const text = `resumed: ${cause}`;
      const { width } = draw.measureText(text);
      const left = x + 5 + width < this.width ? x + 5 : x - 5 - width;
      if (left > draw.measureText("the model writes").width + 12) draw.fillText(text, left, LANES.top - 6);
    }
  }

  paintLanes(draw) {
    draw.font = "12px system-ui, sans-serif";
    draw.fillStyle = this.colours.faint;
    draw.fillText("the model writes", 4, LANES.top - 6);
    draw.fillText("the client receives", 4, HEIGHT - 22);
    draw.fillStyle = this.colours.line;
    draw.fillRect(0, LANES.top, this.width, LANES.written);
    draw.fillRect(0, LANES.top + LANES.written + LANES.gap, this.width, LANES.received);
    this.paintAxis(draw);
  }

  // Draws about one tick per 90 pixels, at round times or numbers of deltas.
  paintAxis(draw) {
    const [first, whole] = this.byDelta ? [0, this.steps.length] : [this.begin, Math.max(this.end - this.begin, 1e-6)];
    const from = first + this.view[0] * whole;
    const to = first + this.view[1] * whole;
    const rough = ((to - from) * 90) / this.width;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max([1, 2, 5, 10].find((one) => one * power >= rough) * power, this.byDelta ? 1 : 1e-4);
    const digits = step >= 0.001 ? 0 : 1;
    const label = (at) => (this.byDelta ? `${Math.round(at)}` : to < 1 ? `${(at * 1000).toFixed(digits)} ms` : `${at.toFixed(Math.max(0, Math.ceil(-Math.log10(step))))} s`);
    draw.fillStyle = this.colours.faint;
    let free = 0;
    for (let at = Math.ceil(from / step) * step, i = 0; at <= to && i < 60; at += step, i++) {
      const x = 4 + ((at - from) / (to - from)) * (this.width - 8);
      draw.fillRect(x, HEIGHT - 18, 1, 5);
      const text = label(at);
      const { width } = draw.measureText(text);
      const left = Math.min(Math.max(x - width / 2, 0), this.width - width);
      if (left < free) continue;
      draw.fillText(text, left, HEIGHT - 3);
      free = left + width + 8;
    }
  }

  // Returns the beginning of a text that fits into a width.
  fitting(draw, text, width) {
    if (draw.measureText(text).width <= width) return text;
    const count = bisect(text.length, (i) => draw.measureText(`${text.slice(0, i + 1)}…`).width <= width);
    return count ? `${text.slice(0, count)}…` : "";
  }

  // Returns the intervals in which text was buffered: from the step that buffers text to the step that releases it.
  holds() {
    const found = [];
    let open = null;
    for (const [i, [, , , , held, why, waits]] of this.steps.entries()) {
      if ((held || waits) && !open) open = { from: i, why: why || waits };
      else if (!held && !waits && open) {
        found.push({ ...open, to: i });
        open = null;
      }
    }
    if (open) found.push({ ...open, to: this.last });
    return found;
  }

  paintHolds(draw) {
    const top = LANES.top + LANES.written;
    for (const hold of this.holds()) {
      const from = this.xOf(hold.from);
      const width = Math.max(this.xOf(hold.to) - from, 1.5);
      if (from > this.width || from + width < 0) continue;
      draw.fillStyle = this.colours.hold;
      draw.fillRect(from, top, width, LANES.gap);
      const left = Math.max(from, 0) + 5;
      const room = Math.min(from + width, this.width) - left - 4;
      if (room < 60) continue;
      draw.fillStyle = this.colours.ink;
      draw.fillText("buffered:", left, top + 18);
      draw.fillText(this.fitting(draw, hold.why, room), left, top + 34);
    }
  }

  paintSteps(draw) {
    const kinds = new Map();
    for (const [start, end, kind, came] of this.reply.segments) {
      const bars = kinds.get(came) ?? kinds.set(came, []).get(came);
      bars.push([kind, end - start]);
    }
    for (let i = 0; i < this.steps.length; i++) {
      const bars = kinds.get(i);
      if (!bars) continue;
      const all = bars.reduce((sum, [, length]) => sum + length, 0);
      const x = this.xOf(i);
      if (x < -8 || x > this.width) continue;
      const width = Math.max(Math.min((this.xOf(i + 1) - x) * 0.8, 8), 1);
      let y = LANES.top;
      for (const [kind, length] of bars) {
        const height = (length / all) * LANES.written;
        draw.fillStyle = this.colours[kind];
        draw.fillRect(x, y, width, height);
        y += height;
      }
    }
  }

  paintSent(draw) {
    const top = LANES.top + LANES.written + LANES.gap;
    const kinds = { text_delta: "text", reasoning_delta: "reasoning", call_start: "call", arguments_delta: "argument", call_end: "call", failure: "discard" };
    this.reply.sent.forEach(([time, step, events]) => {
      const seen = events.map((event) => kinds[event.type]).filter(Boolean);
      const x = this.x(step, time);
      if (x < -8 || x > this.width) return;
      seen.forEach((kind, i) => {
        draw.fillStyle = this.colours[kind];
        draw.fillRect(x, top + (i * LANES.received) / seen.length, Math.max(Math.min(this.width / this.steps.length, 8) * 0.8, 1), LANES.received / seen.length);
      });
    });
  }

  paintHead(step = this.at) {
    const draw = this.canvas.getContext("2d");
    const ratio = devicePixelRatio || 1;
    draw.setTransform(1, 0, 0, 1, 0, 0);
    draw.clearRect(0, 0, this.canvas.width, this.canvas.height);
    draw.drawImage(this.drawn, 0, 0);
    draw.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw.fillStyle = this.colours.head;
    draw.fillRect(Math.round(this.xOf(Math.max(step, 0))) - 1, LANES.top - 4, 2, HEIGHT - LANES.top - 28);
  }

  // --- navigation

  seek(step) {
    this.stop();
    this.go(step);
    this.say();
  }

  go(step) {
    const to = Math.max(0, Math.min(step, this.last));
    const from = this.at;
    if (to === from) return;
    this.at = to;
    this.showWritten(from, to);
    this.showReceived(from, to);
    this.slider.value = to;
    const [time, start, end, , held] = this.steps[to] ?? [0, 0, 0, "", 0];
    this.slider.setAttribute("aria-valuetext", `${to + 1} of ${this.steps.length}, ${seconds(time)}, ${end - start} characters, ${held} buffered`);
    if (this.colours) this.reveal();
    this.describe(to);
  }

  // Moves the visible part so that it contains the selected delta, and marks the delta.
  reveal() {
    const x = this.xOf(this.at);
    if (x >= 0 && x <= this.width) {
      this.paintHead();
      return;
    }
    const [from, to] = this.view;
    const selected = from + ((x - 4) / (this.width - 8)) * (to - from);
    this.look(selected - (to - from) / 2, selected + (to - from) / 2);
  }

  showWritten(from, to) {
    const now = bisect(this.arrives.length, (i) => this.arrives[i] <= to);
    const then = from < 0 ? 0 : bisect(this.arrives.length, (i) => this.arrives[i] <= from);
    if (from < 0) this.spans.forEach((span, i) => span.classList.toggle("future", i >= now));
    else for (let i = Math.min(now, then); i < Math.max(now, then); i++) this.spans[i].classList.toggle("future", i >= now);
    this.point(this.spans[now - 1], "pointed");
    for (const [left, i] of this.leaving) this.spans[i].classList.toggle("held-now", this.arrives[i] <= to && to < left);
    if (this.playing) this.follow(this.written, this.spans[now - 1]);
  }

  showReceived(from, to) {
    const now = bisect(this.pieces.length, (i) => this.pieces[i][0] <= to);
    const then = from < 0 ? 0 : bisect(this.pieces.length, (i) => this.pieces[i][0] <= from);
    if (from < 0) this.pieces.forEach(([, span], i) => span.classList.toggle("future", i >= now));
    else for (let i = Math.min(now, then); i < Math.max(now, then); i++) this.pieces[i][1].classList.toggle("future", i >= now);
    this.point(this.pieces[now - 1]?.[1], "answered");
    if (this.playing) this.follow(this.received, this.pieces[now - 1]?.[1]);
  }

  // Marks the end of the text so far, after `span`. `which` names the text.
  point(span, which) {
    this[which]?.classList.remove("now");
    this[which] = span;
    span?.classList.add("now");
  }

  follow(place, span) {
    if (!span) return;
    const below = span.offsetTop - place.offsetTop - place.clientHeight + 40;
    if (below > place.scrollTop || span.offsetTop - place.offsetTop < place.scrollTop) place.scrollTop = below;
  }

  toggle() {
    if (this.playing) this.stop();
    else this.start();
  }

  start() {
    if (this.at >= this.last) this.go(0);
    let moment = this.steps[this.at]?.[0] ?? 0;
    let before = performance.now();
    const frame = (now) => {
      moment += ((now - before) / 1000) * Number(this.speed.value);
      before = now;
      this.go(Math.max(bisect(this.steps.length, (i) => this.steps[i][0] <= moment) - 1, this.at));
      if (this.at >= this.last) this.stop();
      else this.playing = requestAnimationFrame(frame);
    };
    this.playing = requestAnimationFrame(frame);
    this.play.textContent = "Pause";
  }

  stop() {
    if (this.playing) cancelAnimationFrame(this.playing);
    this.playing = null;
    this.play.textContent = "Play";
  }

  key(event) {
    if (event.target.matches("input, textarea, select, button, a, pre") && event.key !== "Escape") {
      if (!(event.target === this.slider && event.key === " ")) return;
    }
    const moves = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: this.last };
    if (event.key === " ") this.toggle();
    else if (event.key === "+" || event.key === "=") this.zoom(2);
    else if (event.key === "-") this.zoom(0.5);
    else if (event.key === "0") this.look(0, 1);
    else if (event.key in moves) this.seek(moves[event.key]);
    else return;
    event.preventDefault();
  }

  // --- description

  say() {
    const [time, start, end, state, held, why, waits] = this.steps[this.at] ?? [];
    if (time === undefined) return;
    const reason = why || waits;
    this.spoken.textContent = `Delta ${this.at + 1} at ${seconds(time)}: ${quoted(this.reply.text.slice(start, end), 60)}, ${state}${held || waits ? `, buffered: ${reason}` : ""}`;
  }

  hover(event) {
    const { dragged } = this;
    if (!dragged) {
      this.describe(this.stepAt(event));
      return;
    }
    dragged.wide ||= Math.abs(event.clientX - dragged.x) > 5;
    if (!dragged.wide) return;
    this.paintHead();
    const draw = this.canvas.getContext("2d");
    const begin = this.canvas.getBoundingClientRect().left;
    draw.globalAlpha = 0.18;
    draw.fillRect(Math.min(dragged.x, event.clientX) - begin, LANES.top, Math.abs(event.clientX - dragged.x), HEIGHT - LANES.top - 36);
    draw.globalAlpha = 1;
  }

  describe(index, span) {
    const step = this.steps[index];
    if (!step) {
      this.step.replaceChildren(el("dt", {}, "Text"), el("dd", {}, "The model wrote nothing here."));
      return;
    }
    const [time, start, end, state, held, why, waits, events] = step;
    const segment = span?.dataset.segment === undefined ? null : this.reply.segments[Number(span.dataset.segment)];
    const call = this.calls[index];
    const form = call && this.formats.get(call.format);
    const rows = [
      ["Delta", `${index + 1} of ${this.steps.length}, at ${seconds(time)}`],
      ["Text", state === "closed" ? "(the end)" : quoted(this.reply.text.slice(start, end))],
      segment && ["Parsed as", `${KINDS[segment[2]]}${segment[4] === null ? "; never sent to the client" : segment[4] !== segment[3] ? `; buffered for ${seconds(this.steps[Math.min(segment[4], this.last)][0] - this.steps[segment[3]][0])}` : ""}`],
      this.seams.has(index) && ["Resumed", `${this.seams.get(index)}; another attempt continues the reply here`],
      ["State", state],
      ["Buffered", held || waits ? `${held ? plural(held, "character") : "text"}: ${[why, waits].filter(Boolean).join("; ")}` : "nothing"],
      ["Events", events.map((event) => `${event.type}${event.text !== undefined ? ` ${quoted(event.text, 40)}` : event.name ? ` ${event.name}` : ""}${event.repairs?.length ? ` repaired: ${event.repairs.join(", ")}` : ""}${event.reason ? ` (${event.reason})` : ""}`).join(" · ") || "none"],
      form && ["Format", `${form.name}: ${form.openers.slice(0, 4).join(" ") || "no marker"}${form.closers.length ? ` … ${form.closers[0]}` : ""}`],
    ].filter(Boolean);
    this.step.replaceChildren(...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  }
}
