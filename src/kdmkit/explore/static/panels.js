// Panels beside the cards: what to ask next, the tree, draws, a row, and the question as text.

import { askModel, tell } from "./api.js";
import { el, write } from "./dom.js";
import { download } from "./save.js";
import { drawTree, strength, within } from "./tree.js";

function panel(title, open, ...children) {
  return el("details", { class: "panel", open }, el("summary", { text: title }), el("div", { class: "inside" }, ...children));
}

/** Runs a question of a button: the button waits, errors are told. */
async function run(button, question) {
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  try {
    const found = await question();
    tell(null);
    return found;
  } catch (error) {
    tell(error.message);
    return null;
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
}

/** Which column would tell most about the target. */
export class NextPanel {
  constructor(ask) {
    this.ask = ask;
    this.hint = el("p", { class: "muted" });
    this.button = el("button", { type: "button", text: "Which column tells most?", click: () => this.find() });
    this.list = el("ol", { class: "ranked" });
    this.node = panel("Ask next", true, this.hint, this.button, this.list);
  }

  changed() {
    const target = this.ask.target();
    write(this.hint, target === null ? "Mark a column as the target first." : `Target: ${target}`);
    this.button.disabled = target === null;
    this.list.classList.add("stale");
    if (target === null) this.list.replaceChildren();
  }

  async find() {
    const target = this.ask.target();
    const found = await run(this.button, () => askModel(this.ask.model, "/next", this.ask.body({ target })));
    if (found === null) return;
    const top = Math.max(...found.columns.map((column) => column.information), 1e-9);
    this.list.classList.remove("stale");
    this.list.replaceChildren(...found.columns.slice(0, 8).map(({ column: name, information: value, interval }) => {
      const bar = el("span", { class: "bar after" });
      bar.style.width = `${(100 * value) / top}%`;
      return el("li", {}, el("button", { type: "button", class: "link", text: name, click: () => this.ask.go(name) }),
        el("span", { class: "bars" }, bar),
      el("span", { class: "share", text: strength(value), title: within(value, interval) }));
    }), el("li", { class: "unit muted", text: "how much a column would tell; numbers on the words" }));
  }
}

/** The tree of columns. */
export class TreePanel {
  constructor(ask, open) {
    this.ask = ask;
    this.place = el("div", { class: "tree" }, el("p", { class: "muted", text: "Measuring …" }));
    this.node = panel("Dependences", open, this.place);
    if (open) this.load();
    else this.node.addEventListener("toggle", () => this.load(), { once: true });
  }

  async load() {
    try {
      const found = await askModel(this.ask.model, "/links");
      this.place.replaceChildren(...drawTree(found, (name) => this.ask.go(name)));
    } catch (error) {
      this.place.replaceChildren(el("p", { class: "problem", text: error.message }));
    }
  }
}

/** What holds in all rows, or in almost all. */
export class RulesPanel {
  constructor(rules) {
    const items = rules.map(({ text, rows, exceptions }) => el("li", {}, el("code", { text }),
      el("span", { class: "share", text: exceptions ? `${exceptions} of ${rows} rows break it` : "" })));
    this.node = panel("What always holds", rules.length <= 6, el("ul", { class: "rules" }, ...items),
      el("p", { class: "muted unit", text: "a -> b: each value of a has one value of b" }));
  }
}

/** Rows that are drawn given what is known. */
export class DrawsPanel {
  constructor(ask) {
    this.ask = ask;
    this.button = el("button", { type: "button", text: "Draw 10 rows", click: () => this.draw() });
    this.n = el("input", { type: "number", min: 1, max: 10000, value: "1000", class: "count", "aria-label": "Rows of the CSV file" });
    this.save = el("button", { type: "button", class: "quiet", text: "Save as CSV", click: () => this.download() });
    this.place = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Drawn rows", hidden: true });
    this.node = panel("Draws", false, el("div", { class: "buttons" }, this.button, this.n, this.save), this.place);
  }

  changed() {
    this.place.classList.add("stale");
  }

  async draw() {
    const found = await run(this.button, () => askModel(this.ask.model, "/draws", this.ask.body({ n: 10 })));
    if (found === null) return;
    this.place.hidden = false;
    this.place.classList.remove("stale");
    this.place.replaceChildren(rowsTable(found.columns, found.rows));
  }

  async download() {
    const n = Math.round(Number(this.n.value));
    if (!(n >= 1 && n <= 10_000)) {
      tell("Draws: type how many rows to save, from 1 to 10,000.");
      return;
    }
    const text = await run(this.save, () => askModel(this.ask.model, "/draws.csv", this.ask.body({ n })));
    if (text === null) return;
    download(`${this.ask.model}-draws.csv`, new Blob([text], { type: "text/csv" }));
  }
}

function rowsTable(columns, rows) {
  const numeric = columns.map((_, i) => rows.every((row) => row[i] === "" || !Number.isNaN(Number(row[i]))));
  return el("table", {}, el("thead", {}, el("tr", {}, ...columns.map((name, i) => el("th", { text: name, class: numeric[i] ? "right" : null })))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, i) => el("td", { text: cell, class: numeric[i] ? "right" : null }))))));
}

/** A row that is pasted or loaded: how surprising its cells are. */
export class RowPanel {
  constructor(ask) {
    this.ask = ask;
    const names = ask.columns.slice(0, 3).map((column) => column.name).join(",");
    this.text = el("textarea", { rows: 3, spellcheck: "false", "aria-label": "A header line and rows, as CSV", placeholder: `${names},…\n(header line, then rows, as CSV)` });
    this.file = el("input", { type: "file", accept: ".csv,text/csv,text/plain", "aria-label": "Load a CSV file", change: () => this.load() });
    this.row = el("input", { type: "number", min: 1, value: "1", class: "count", "aria-label": "Which row" });
    this.button = el("button", { type: "button", text: "Check", click: () => this.check() });
    this.hold = el("button", { type: "button", class: "quiet", text: "Hold its values", disabled: true, click: () => this.put() });
    this.fill = el("button", { type: "button", class: "quiet", text: "Fill in missing cells", click: () => this.complete(this.fill, null) });
    this.predict = el("button", { type: "button", class: "quiet", text: "Predict the target", click: () => this.complete(this.predict, ask.target()) });
    this.place = el("div", { class: "scroll", hidden: true });
    this.node = panel("Your rows", false, this.text, this.file,
      el("div", { class: "buttons" }, el("label", { class: "inline" }, "row ", this.row), this.button, this.hold),
      el("div", { class: "buttons" }, this.fill, this.predict), this.place);
  }

  /** Saves all rows, with missing cells filled in or with predictions of the target. */
  async complete(button, target) {
    const csv = this.text.value;
    if (!csv.trim()) {
      tell("Your rows: paste or load a header line and rows, separated by commas.");
      return;
    }
    if (button === this.predict && target === null) {
      tell("Your rows: mark a column as the target first.");
      return;
    }
    const text = await run(button, () => askModel(this.ask.model, "/completed.csv", { csv, target }));
    if (text !== null) download(`${this.ask.model}-${target === null ? "filled" : "predicted"}.csv`, new Blob([text], { type: "text/csv" }));
  }

  async load() {
    const file = this.file.files[0];
    if (!file) return;
    // The first rows of a large file are enough; the last line may be cut off.
    const limit = 150_000;
    const text = await file.slice(0, limit).text();
    this.text.value = file.size > limit ? text.slice(0, text.lastIndexOf("\n")) : text;
    this.check();
  }

  async check() {
    const body = { csv: this.text.value, row: Math.max(1, Math.round(Number(this.row.value) || 1)) - 1 };
    if (!body.csv.trim()) {
      tell("A row: paste a header line and a row, separated by commas.");
      return;
    }
    const found = await run(this.button, () => askModel(this.ask.model, "/explain", body));
    const empty = found === null || !found.cells.length;
    this.place.hidden = empty;
    this.hold.disabled = empty;
    if (found === null) return;
    if (empty) tell("A row: all its cells are missing.");
    this.row.max = found.n_rows;
    this.cells = found.cells;
    this.place.replaceChildren(el("table", { class: "cells" },
      el("thead", {}, el("tr", {}, ...["column", "value", "expected"].map((name) => el("th", { text: name })), el("th", { text: "as surprising", title: "how probable values are that are at least as surprising" }))),
      el("tbody", {}, ...found.cells.map((cell) => el("tr", { class: cell.surprising ? "surprising" : null, title: `${cell.column}: ${cell.value}, expected ${cell.expected}` },
        el("td", { text: cell.column }), el("td", { text: cell.value }), el("td", { text: cell.expected }),
        el("td", { class: "right", text: `${cell.surprising ? "▲ " : ""}${percent(cell.probability)}` }))))));
  }

  put() {
    this.ask.put(new Map(this.cells.map((cell) => [cell.column, cell.known === null ? { missing: true } : { values: [cell.known] }])));
  }
}

function percent(p) {
  return p >= 0.001 || p === 0 ? `${(100 * p).toFixed(1)}%` : "< 0.1%";
}

/** The question as text. */
export class TextPanel {
  constructor() {
    this.python = this.line("Python");
    this.shell = this.line("Shell");
    this.node = panel("As text", true, this.python.node, this.shell.node);
  }

  line(name) {
    const code = el("code", { tabindex: 0, "data-kind": name.toLowerCase() });
    const copy = el("button", { type: "button", class: "quiet", text: "Copy", "aria-label": `Copy for ${name}`, click: () => this.copy(code, copy) });
    return { code, node: el("div", { class: "text" }, el("span", { class: "caption", text: name }), code, copy) };
  }

  show(texts) {
    write(this.python.code, texts.python);
    this.shell.node.hidden = texts.shell === undefined;
    write(this.shell.code, texts.shell ?? "");
  }

  async copy(code, button) {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1200);
  }
}
