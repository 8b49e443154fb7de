// Small charts: one number over the last minutes, drawn as SVG.
//
// All charts share one cursor: point at one, or focus it and use the arrow keys, and every chart
// shows its value at that time.

import { element, say, svg } from "./dom.js";
import { clock, NOTHING } from "./format.js";

const WIDTH = 100;
const HEIGHT = 100;

export class Charts {
  /** `kinds`: {key: {label, parts(value) -> [number, unit]}}. `length`: points that are kept. */
  constructor(kinds, length) {
    this.length = length;
    this.times = [];
    this.cursor = null;
    this.node = element("div", { class: "charts" });
    this.charts = Object.entries(kinds).map(([key, kind]) => new Chart(key, kind, (at) => this.#point(at)));
    for (const chart of this.charts) this.node.append(chart.node);
  }

  /** Begin with what the gateway remembers: {times, series}, behind what is known here before it. */
  load({ times, series }) {
    const first = times[0] ?? Infinity;
    const own = this.times.filter((time) => time < first).length;
    this.times = [...this.times.slice(0, own), ...times].slice(-this.length);
    for (const chart of this.charts) {
      const values = series[chart.key] ?? times.map(() => null);
      chart.values = [...chart.values.slice(0, own), ...values].slice(-this.length);
    }
    this.draw();
  }

  add(time, values) {
    if (this.times.length && time <= this.times.at(-1)) return;
    this.times.push(time);
    for (const chart of this.charts) chart.values.push(values[chart.key] ?? null);
    if (this.times.length > this.length) {
      this.times.shift();
      for (const chart of this.charts) chart.values.shift();
      if (this.cursor) this.cursor -= 1;
    }
    this.draw();
  }

  draw() {
    for (const chart of this.charts) {
      chart.draw(this.times, this.length);
      chart.mark(this.times, this.length, this.cursor);
    }
  }

  #point(move) {
    if (move === null || !this.times.length) this.cursor = null;
    else {
      const last = this.times.length - 1;
      const wanted = move.ratio === undefined
        ? (this.cursor ?? last) + move.step
        : Math.round(move.ratio * (this.length - 1)) - (this.length - this.times.length);
      this.cursor = Math.max(0, Math.min(last, wanted));
    }
    for (const chart of this.charts) chart.mark(this.times, this.length, this.cursor);
  }
}

class Chart {
  constructor(key, kind, point) {
    this.key = key;
    this.kind = kind;
    this.values = [];
    this.time = element("time");
    this.number = element("span", { text: NOTHING });
    this.unit = element("small");
    this.area = svg("path", { class: "area" });
    this.stroke = svg("path", { class: "stroke" });
    this.cross = element("span", { class: "cross", hidden: true });
    this.top = element("span", { class: "top" });
    const drawing = svg(
      "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      this.area, this.stroke,
    );
    this.plot = element("div", { class: "plot" }, drawing, this.cross);
    this.node = element(
      "div", {
        class: "card chart", tabindex: "0", role: "slider", "aria-label": kind.label,
        "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0", data: { chart: key },
        on: {
          pointermove: (event) => point({ ratio: this.#ratio(event) }),
          pointerleave: () => point(null),
          blur: () => point(null),
          keydown: (event) => this.#key(event, point),
        },
      },
      element("h3", {}, element("span", { text: kind.label }), this.time),
      element("p", { class: "now" }, this.number, this.unit, this.top),
      this.plot,
    );
  }

  #ratio(event) {
    const box = this.plot.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  }

  #key(event, point) {
    const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: -10, PageDown: 10, Home: -1e6, End: 1e6 }[event.key];
    if (event.key === "Escape") point(null);
    else if (step) {
      event.preventDefault();
      point({ step });
    }
  }

  draw(times, length) {
    const known = this.values.filter((value) => value !== null);
    const most = Math.max(...known, 0);
    const x = (at) => ((length - times.length + at) / (length - 1)) * WIDTH;
    const y = (value) => HEIGHT - 2 - (most ? (value / most) * (HEIGHT - 16) : 0);
    let line = "";
    let area = "";
    let start = null;
    this.values.forEach((value, at) => {
      if (value === null) {
        if (start !== null) area += `L${x(at - 1)} ${HEIGHT}L${x(start)} ${HEIGHT}Z`;
        start = null;
        return;
      }
      const point = `${start === null ? "M" : "L"}${x(at).toFixed(2)} ${y(value).toFixed(2)}`;
      start ??= at;
      line += point;
      area += point;
    });
    if (start !== null) area += `L${x(this.values.length - 1)} ${HEIGHT}L${x(start)} ${HEIGHT}Z`;
    this.stroke.setAttribute("d", line);
    this.area.setAttribute("d", area);
    say(this.top, most ? `top ${this.kind.parts(most).join(" ").trim()}` : "");
    this.node.setAttribute("aria-valuemax", String(Math.max(0, times.length - 1)));
  }

  mark(times, length, cursor) {
    const at = cursor ?? this.values.length - 1;
    const value = this.values[at] ?? null;
    const [number, unit] = this.kind.parts(value);
    say(this.number, number);
    say(this.unit, unit);
    say(this.time, cursor === null ? "" : clock(times[at]));
    this.cross.hidden = cursor === null;
    if (cursor !== null) {
      this.cross.style.left = `${((length - times.length + at) / (length - 1)) * 100}%`;
    }
    const when = times.length ? `, at ${clock(times[at])}` : "";
    this.node.setAttribute("aria-valuenow", String(Math.max(0, at)));
    this.node.setAttribute("aria-valuetext", `${number} ${unit}${when}`.trim());
  }
}
