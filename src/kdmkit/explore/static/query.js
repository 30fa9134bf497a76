// The box for questions in the query language, with names and levels to complete.

import { askModel } from "./api.js";
import { el, write } from "./dom.js";

const SHOWN = 8;
const KEYS = { log_evidence: "log p of the conditions", support: "how usual the conditions are" };
const WORD = /(?:`[^`]*|[\p{L}\p{N}_.]*)$/u;

const isPlain = (name) => /^[\p{L}_][\p{L}\p{N}_.-]*$/u.test(name);

export class QueryBox {
  /** `changed()` is called when another question was asked. */
  constructor(model, changed) {
    this.model = model;
    this.changed = changed;
    this.asked = "";
    this.columns = new Map(model.columns.map((column) => [column.name, column]));
    this.list = el("ul", { class: "completions", role: "listbox", id: "completions", "aria-label": "Names and levels", hidden: true });
    this.input = el("input", {
      type: "text", spellcheck: "false", autocomplete: "off", role: "combobox", "aria-expanded": "false",
      "aria-controls": "completions", "aria-autocomplete": "list", "aria-label": "A question",
      placeholder: "Ask: P(price | cut = Ideal), or price > 1000", maxlength: 10000,
      input: () => this.complete(), keydown: (event) => this.key(event), blur: () => this.close(),
    });
    const first = model.columns[0]?.name ?? "column";
    this.input.placeholder = `Ask: P(${first} | …), or a condition`;
    this.answer = el("output", { class: "answer", hidden: true });
    this.node = el("form", { class: "query", role: "search", "aria-label": "Ask", submit: (event) => this.ask(event) },
      el("div", { class: "combo" }, this.input, this.list), el("button", { type: "submit", text: "Ask" }), this.answer);
  }

  // ---- completion

  /** What can follow: levels after a sign of a column with levels, else names of columns. */
  options() {
    const before = this.input.value.slice(0, this.input.selectionStart);
    const start = WORD.exec(before)[0];
    const head = before.slice(0, before.length - start.length);
    const typed = start.replace(/^`/, "").toLowerCase();
    const compared = /(?:`([^`]+)`|([\p{L}_][\p{L}\p{N}_.-]*))\s*(?:!?=|in\s*\{[^}]*|in\s*\[[^\]]*)\s*$/u.exec(head);
    const column = compared && this.columns.get(compared[1] ?? compared[2]);
    const words = column?.levels ? column.levels.map(String) : [...this.columns.keys()];
    if (column && !column.levels) return { start, words: [] };
    const near = words.filter((word) => word.toLowerCase().includes(typed));
    near.sort((a, b) => Number(b.toLowerCase().startsWith(typed)) - Number(a.toLowerCase().startsWith(typed)));
    const written = (word) => (isPlain(word) ? word : column ? JSON.stringify(word) : `\`${word}\``);
    return { start, words: typed || column ? near.slice(0, SHOWN).map((word) => ({ word, text: written(word) })) : [] };
  }

  complete() {
    const { words } = this.options();
    this.at = -1;
    this.list.replaceChildren(...words.map(({ word }, i) => el("li", {
      role: "option", id: `completion-${i}`, text: word, mousedown: (event) => { event.preventDefault(); this.take(i); },
    })));
    this.list.hidden = words.length === 0;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    this.input.removeAttribute("aria-activedescendant");
  }

  key(event) {
    if (this.list.hidden) return;
    const n = this.list.children.length;
    if (event.key === "Escape") this.close();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.move((this.at + (event.key === "ArrowDown" ? 1 : n + (this.at < 0 ? 0 : -1))) % n);
    else if ((event.key === "Enter" || event.key === "Tab") && this.at >= 0) this.take(this.at);
    else return;
    event.preventDefault();
  }

  move(at) {
    this.at = at;
    [...this.list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === at)));
    this.input.setAttribute("aria-activedescendant", `completion-${at}`);
  }

  take(i) {
    const { start, words } = this.options();
    const cursor = this.input.selectionStart;
    this.input.setRangeText(words[i].text, cursor - start.length, cursor, "end");
    this.close();
    this.input.focus();
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
  }

  // ---- answers

  ask(event) {
    event.preventDefault();
    this.close();
    const text = this.input.value.trim();
    if (!text) return;
    this.show(text);
    this.changed();
  }

  /** What the address says: the question is asked, or taken away. */
  put(text) {
    if (text === this.asked) return;
    this.input.value = text;
    if (text) this.show(text);
    else {
      this.asked = "";
      this.answer.hidden = true;
    }
  }

  async show(text) {
    this.asked = text;
    const query = /^P\s*\(/i.test(text) ? text : `P(${text})`;
    this.answer.hidden = false;
    this.answer.classList.remove("problem");
    try {
      const { query: asked, ...numbers } = await askModel(this.model.name, "/ask", { query });
      if (text !== this.asked) return;
      this.answer.replaceChildren(el("b", { text: asked }), el("dl", {}, ...Object.entries(numbers).flatMap(([name, value]) => [
        el("dt", { text: KEYS[name] ?? name }), el("dd", { text: shown(value) }),
      ])));
    } catch (error) {
      if (text !== this.asked) return;
      this.answer.classList.add("problem");
      this.answer.replaceChildren(el("pre", {}));
      write(this.answer.firstChild, error.message);
    }
  }
}

function shown(value) {
  if (typeof value === "number") return String(Number(value.toPrecision(6)));
  if (Array.isArray(value)) return value.map(shown).join(" – ");
  if (value !== null && typeof value === "object") return Object.entries(value).map(([name, part]) => `${name}: ${shown(part)}`).join(", ");
  return String(value ?? "–");
}
