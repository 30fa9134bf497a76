// The card of a column: its numbers, its chart, and what is known of it.

import { Histogram, Levels } from "./charts.js";
import { el, set, write } from "./dom.js";
import { saveCsv, savePng } from "./save.js";
import { read } from "./values.js";

/**
 * A card. `change(condition)` is called with what the person says about the column (null: nothing),
 * `mark()` where the column is made the target.
 */
export class Card {
  constructor(column, change, mark) {
    this.column = column;
    this.change = change;
    const isList = column.bins === null;
    this.chart = isList
      ? new Levels(column, (indices) => this.pickLevels(indices))
      : new Histogram(column, (bins) => this.pickBins(bins));
    this.target = el("button", {
      type: "button", class: "target", "aria-pressed": "false", text: "Target",
      title: "Ask for this column", "aria-label": `${column.name} is the target`, click: mark,
    });
    this.mean = el("b", { class: "mean" });
    this.interval = el("b", { class: "interval" });
    this.now = el("p", { class: "numbers" },
      el("span", { class: "number" }, el("span", { class: "caption", text: "mean" }), this.mean),
      el("span", { class: "number" }, el("span", { class: "caption", text: "90 %" }), this.interval));
    this.was = el("span", { class: "was" });
    this.status = el("span", { class: "status" });
    this.value = el("input", {
      type: "text", class: "value", spellcheck: "false", autocomplete: "off",
      placeholder: isList ? "level" : "value or range",
      "aria-label": `${column.name}, a value${isList ? "" : " or a range"}`,
    });
    this.missing = el("button", {
      type: "button", class: "quiet missing", text: "Missing", "aria-pressed": "false",
      title: "The cell is missing", hidden: !column.can_be_missing, click: () => this.setMissing(),
    });
    this.clear = el("button", {
      type: "button", class: "quiet clear", text: "Clear", "aria-label": `Clear ${column.name}`, click: () => this.reset(true),
    });
    const form = el("form", { class: "entry", submit: (event) => this.typed(event) }, this.value, this.missing, this.clear);
    this.node = el("article", { class: `card ${isList ? "list" : "ranged"}`, "data-column": column.name, "aria-label": column.name },
      el("header", {}, el("h2", { title: column.details }, this.heading = el("button", {
        type: "button", class: "link", text: column.name, "aria-expanded": "true", title: "Fold or unfold", click: () => this.fold(),
      })), el("span", { class: "kind", text: column.kind }), this.brief = el("span", { class: "brief" }), this.target, this.saving()),
      el("div", { class: "figures" }, this.now, el("p", { class: "second" }, this.status, this.was)), this.chart.node, form);
    this.draw(null, null);
  }

  /** Shows the header alone, or all; without an argument the other one of both. */
  fold(folded = !this.node.classList.contains("is-folded")) {
    this.node.classList.toggle("is-folded", folded);
    set(this.heading, "aria-expanded", String(!folded));
  }

  saving() {
    const item = (text, save) => el("button", {
      type: "button", class: "quiet", text, "aria-label": `Save ${this.column.name} as ${text}`,
      click: () => { save(this.column, this.latest, this.caption()); menu.open = false; },
    });
    const menu = el("details", { class: "saving" }, el("summary", { text: "⋯", "aria-label": `Save ${this.column.name}` }),
      el("div", {}, item("PNG", savePng), item("CSV", saveCsv)));
    return menu;
  }

  caption() {
    return [this.mean.textContent && this.column.prior.mean !== null ? `mean ${this.mean.textContent}` : "",
      this.column.prior.interval === null ? "" : `90 %: ${this.interval.textContent}`, this.status.textContent].filter(Boolean).join(", ");
  }

  // ---- what the person says

  pickLevels(indices) {
    this.say(indices.length ? { values: indices.map((i) => this.column.levels[i]) } : null);
  }

  pickBins(bins) {
    if (bins === null) return this.say(null);
    const [low] = this.column.bins[bins[0]];
    const [, high] = this.column.bins[bins[1]];
    const last = this.column.bins.length - 1;
    // The first and the last bin leave out the tails: a range up to them is open.
    return this.say({ range: { low: bins[0] === 0 ? null : low, high: bins[1] === last ? null : high } });
  }

  typed(event) {
    event.preventDefault();
    const condition = read(this.value.value, this.column);
    if (condition instanceof Error) {
      this.value.setCustomValidity(condition.message);
      this.value.reportValidity();
      this.value.addEventListener("input", () => this.value.setCustomValidity(""), { once: true });
      return;
    }
    this.chart.reset();
    if (condition?.values && this.column.levels) {
      this.chart.select(condition.values.map((value) => this.column.levels.indexOf(value)));
    }
    this.say(condition);
  }

  setMissing() {
    const set = this.missing.getAttribute("aria-pressed") !== "true";
    this.reset(false);
    this.say(set ? { missing: true } : null);
  }

  reset(tell) {
    this.chart.reset();
    this.value.value = "";
    if (tell) this.say(null);
  }

  say(condition) {
    this.hold(condition);
    this.change(condition);
  }

  /** Shows a condition that comes from elsewhere, for example a pasted row. */
  put(condition) {
    this.reset(false);
    if (condition?.values && this.column.levels) {
      this.chart.select(condition.values.map((value) => this.column.levels.findIndex((level) => String(level) === String(value))));
    } else if (condition?.values) {
      this.value.value = condition.values.join(", ");
    }
    this.hold(condition);
  }

  hold(condition) {
    const known = condition !== null && !condition.missing;
    this.node.classList.toggle("is-held", known);
    set(this.missing, "aria-pressed", String(Boolean(condition?.missing)));
    this.clear.disabled = condition === null;
  }

  // ---- what the model says

  /** Draws an answer; `condition` is what is known of this column. The numbers of held columns come a little later. */
  draw(card, condition) {
    const known = condition !== null && !condition.missing;
    const { prior } = this.column;
    const drawn = known ? card ?? this.only(condition) : card;
    const now = drawn ?? prior;
    const waiting = known && drawn === null;
    this.latest = now;
    this.chart.draw(drawn);
    this.now.hidden = now.mean === null && (now.interval === null || this.column.labels.length <= 2);
    write(this.mean, waiting ? "–" : now.mean ?? "–");
    write(this.interval, waiting || now.interval === null ? "–" : now.interval.join(" – "));
    this.mean.parentElement.hidden = now.mean === null;
    const changed = now.mean !== prior.mean || String(now.interval) !== String(prior.interval);
    write(this.was, changed && !this.now.hidden ? `before ${[prior.mean, prior.interval?.join(" – ")].filter(Boolean).join(", ")}` : "");
    let text = "";
    if (known) text = "held";
    else if (condition?.missing) text = "missing";
    else if (now.missing) text = `${now.missing} missing`;
    else if (this.now.hidden) text = `${this.column.labels.length} levels`;
    write(this.status, text);
    write(this.brief, waiting ? "held" : this.short(now));
    set(this.node, "title", now.beyond && !known ? `${now.beyond} lie beyond the chart` : "");
    this.hold(condition);
  }

  /** The answer in a few words, for a folded card. */
  short(now) {
    if (now.mean !== null || now.shares === null) return now.mean ?? now.interval?.join(" – ") ?? "";
    const best = now.probabilities.indexOf(Math.max(...now.probabilities));
    return `${this.column.labels[best]} ${now.shares[best]}`;
  }

  /** Whether a condition leaves several values of the column. */
  isPart(condition) {
    return !condition.missing && (this.column.levels === null || condition.values.length > 1);
  }

  /** The card of a column that is held to one of its levels; null of other conditions. */
  only(condition) {
    const { levels } = this.column;
    if (this.isPart(condition)) return null;
    const probabilities = levels.map((level) => Number(String(level) === String(condition.values[0])));
    return { probabilities, shares: probabilities.map((p) => `${100 * p}.0%`), mean: null, interval: null, beyond: null, missing: null };
  }

  markTarget(is) {
    this.target.setAttribute("aria-pressed", String(is));
    this.node.classList.toggle("is-target", is);
  }
}
