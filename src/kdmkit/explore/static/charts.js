// Charts of one column: a histogram with a range to drag, and a list of levels to pick.

import { el, set, svg, write } from "./dom.js";

const WIDTH = 240;
const HEIGHT = 84;

/** The outline of a histogram as a path. */
function outline(masses, top) {
  const step = WIDTH / masses.length;
  const height = (mass) => (HEIGHT - (mass / top) * (HEIGHT - 3)).toFixed(2);
  let path = `M0 ${HEIGHT}`;
  masses.forEach((mass, i) => {
    const y = height(mass);
    path += `L${(i * step).toFixed(2)} ${y}L${((i + 1) * step).toFixed(2)} ${y}`;
  });
  return `${path}L${WIDTH} ${HEIGHT}Z`;
}

/** The ends of the axis; numbers are rounded to a hundredth of the range. */
function ends({ bins, labels }) {
  const [low, high] = [bins[0][0], bins.at(-1)[1]];
  if (typeof low !== "number" || low === high) return [labels[0].split(" – ")[0], labels.at(-1).split(" – ").at(-1)];
  const digits = Math.min(20, Math.max(0, 2 - Math.floor(Math.log10(high - low))));
  return [low, high].map((value) => String(Number(value.toFixed(digits))));
}

/**
 * A histogram: before in grey, after in colour, and a range between two thumbs or by dragging across it.
 * `pick(first, last)` is called with the bins of the range; with null where all are in it.
 */
export class Histogram {
  constructor(column, pick) {
    this.column = column;
    this.pick = pick;
    this.n = column.bins.length;
    this.before = column.prior.probabilities;
    this.beforePath = svg("path", { class: "before" });
    this.afterPath = svg("path", { class: "after" });
    this.held = svg("rect", { class: "held", y: 0, height: HEIGHT, x: 0, width: 0 });
    this.svg = svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true",
    }, this.held, this.beforePath, this.afterPath);
    this.low = this.thumb("from", 0, 0);
    this.high = this.thumb("to", this.n, this.n);
    this.hover = el("output", { class: "hover" });
    const [first, last] = ends(column);
    this.axis = el("div", { class: "axis" }, el("span", { text: first }), this.hover, el("span", { text: last }));
    this.area = el("div", { class: "area" }, this.svg);
    this.node = el("div", { class: "histogram" }, this.area,
      el("div", { class: "slider" }, el("div", { class: "track" }), this.low, this.high), this.axis);
    this.drag();
    this.draw(null);
  }

  thumb(what, value, at) {
    return el("input", {
      type: "range", min: 0, max: this.n, step: 1, value: String(at), class: what,
      "aria-label": `${this.column.name}, ${what}`, input: () => this.slid(what),
    });
  }

  slid(what) {
    let from = Number(this.low.value);
    let to = Number(this.high.value);
    if (from >= to) {
      if (what === "from") from = Math.max(0, to - 1);
      else to = Math.min(this.n, from + 1);
    }
    this.choose(from, to);
  }

  choose(from, to) {
    this.select(from, to);
    if (from === 0 && to === this.n) this.pick(null);
    else this.pick([from, to - 1]);
  }

  /** Shows the bins from `from` to before `to` as held. */
  select(from, to) {
    this.low.value = from;
    this.high.value = to;
    const all = from === 0 && to === this.n;
    set(this.held, "x", String((from / this.n) * WIDTH));
    set(this.held, "width", String(all ? 0 : ((to - from) / this.n) * WIDTH));
    this.low.setAttribute("aria-valuetext", from === 0 ? "no bound" : this.column.labels[from].split(" – ")[0]);
    this.high.setAttribute("aria-valuetext", to === this.n ? "no bound" : this.column.labels[to - 1].split(" – ").at(-1));
  }

  drag() {
    let start = null;
    const bin = (event) => {
      const box = this.area.getBoundingClientRect();
      return Math.min(this.n - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * this.n)));
    };
    const move = (event) => {
      const at = bin(event);
      this.show(at);
      if (start !== null) this.choose(Math.min(start, at), Math.max(start, at) + 1);
    };
    this.area.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.area.setPointerCapture(event.pointerId);
      start = bin(event);
      move(event);
      event.preventDefault();
    });
    this.area.addEventListener("pointermove", move);
    for (const end of ["pointerup", "pointercancel"]) {
      this.area.addEventListener(end, () => { start = null; });
    }
    this.area.addEventListener("pointerleave", () => write(this.hover, ""));
  }

  show(bin) {
    const mass = (this.after ?? this.before)[bin];
    write(this.hover, `${this.column.labels[bin]}: ${(100 * mass).toFixed(1)}%`);
  }

  draw(card) {
    this.after = card === null ? null : card.probabilities;
    const top = Math.max(...this.before, ...(this.after ?? [])) || 1;
    set(this.beforePath, "d", outline(this.before, top));
    set(this.afterPath, "d", this.after === null ? "" : outline(this.after, top));
  }

  reset() {
    this.select(0, this.n);
  }
}

/** Levels with a bar each; `pick(indices)` is called with those that are chosen. */
export class Levels {
  constructor(column, pick) {
    this.column = column;
    this.before = column.prior.probabilities;
    const order = column.labels.map((_, i) => i);
    if (!column.ordered) order.sort((a, b) => this.before[b] - this.before[a]);
    this.rows = [];
    this.node = el("div", {
      class: "levels", role: "group", "aria-label": `${column.name}, levels: arrow keys move`,
      keydown: (event) => this.moved(event), focusin: (event) => this.stop(event.target),
    });
    for (const i of order) {
      const box = el("input", { type: "checkbox", tabindex: i === order[0] ? 0 : -1, change: () => pick(this.chosen()) });
      const before = el("span", { class: "bar before" });
      before.style.width = `${100 * this.before[i]}%`;
      const after = el("span", { class: "bar after" });
      const share = el("span", { class: "share" });
      this.node.append(el("label", { class: "level", title: column.labels[i] }, box,
        el("span", { class: "name", text: column.labels[i] || "(empty)" }),
        el("span", { class: "bars" }, before, after), share));
      this.rows[i] = { box, after, share };
    }
    this.draw(null);
  }

  /** One level is a tab stop: arrow keys, Home and End move to others. */
  moved(event) {
    const boxes = [...this.node.querySelectorAll("input")];
    const at = boxes.indexOf(event.target);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: boxes.length - 1 }[event.key];
    if (at < 0 || next === undefined) return;
    boxes[Math.min(boxes.length - 1, Math.max(0, next))].focus();
    event.preventDefault();
  }

  stop(box) {
    for (const other of this.node.querySelectorAll('input[tabindex="0"]')) if (other !== box) set(other, "tabindex", "-1");
    set(box, "tabindex", "0");
  }

  chosen() {
    return this.rows.flatMap((row, i) => (row.box.checked ? [i] : []));
  }

  draw(card) {
    const now = card ?? this.column.prior;
    this.node.classList.toggle("changed", card !== null);
    this.rows.forEach((row, i) => {
      const width = card === null ? "0" : `${(100 * now.probabilities[i]).toFixed(2)}%`;
      if (row.width !== width) row.after.style.width = width;
      row.width = width;
      write(row.share, now.shares[i]);
    });
  }

  select(indices) {
    this.rows.forEach((row, i) => { row.box.checked = indices.includes(i); });
  }

  reset() {
    this.select([]);
  }
}
