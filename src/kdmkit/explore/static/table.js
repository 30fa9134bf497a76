// The view of a table: a card for every column, what is known, and panels of further questions.

import { askModel, tell } from "./api.js";
import { Card } from "./card.js";
import { el, newest, set, write } from "./dom.js";
import { DrawsPanel, NextPanel, RowPanel, TextPanel, TreePanel } from "./panels.js";
import { conditionText } from "./values.js";

// Milliseconds without a move after which a person pauses.
const PAUSE = 120;

export function showTable(root, model) {
  return new TableView(root, model);
}

class TableView {
  constructor(root, model) {
    this.model = model;
    this.given = new Map();
    this.target = model.targets[0] ?? null;
    this.cards = new Map();
    for (const column of model.columns) {
      this.cards.set(column.name, new Card(column, (condition) => this.set(column.name, condition), () => this.mark(column.name)));
    }
    this.chips = el("ul", { class: "chips", "aria-label": "What is known" });
    this.usual = el("output", { class: "usual", title: "log p: the natural logarithm of the probability, or of the density, of what is held; the higher, the more usual" });
    this.reset = el("button", { type: "button", class: "quiet", text: "Clear all", click: () => this.put(new Map()) });
    const summary = el("section", { class: "evidence", "aria-label": "What is known" }, this.chips, this.usual, this.reset);
    const ask = {
      model: model.name,
      body: (more) => ({ given: Object.fromEntries(this.given), ...more }),
      target: () => this.target,
      columns: model.columns,
      put: (given) => this.put(given),
      go: (name) => this.go(name),
    };
    this.panels = {
      next: new NextPanel(ask), tree: new TreePanel(ask), draws: new DrawsPanel(ask), row: new RowPanel(ask), text: new TextPanel(),
    };
    const cards = el("section", { class: "cards", "aria-label": "Columns" }, ...[...this.cards.values()].map((card) => card.node));
    if (model.left_out.length) {
      cards.append(el("p", { class: "left-out", text: `Not in the model: ${model.left_out.join(", ")}` }));
    }
    root.append(summary, el("div", { class: "layout" }, cards,
      el("aside", { class: "side", "aria-label": "More questions" }, ...Object.values(this.panels).map((panel) => panel.node))));
    this.update = newest(() => this.answer());
    this.mark(this.target, false);
    this.update();
  }

  set(name, condition) {
    if (condition === null) this.given.delete(name);
    else this.given.set(name, condition);
    this.update();
  }

  /** Replaces all that is known. */
  put(given) {
    this.given = given;
    for (const [name, card] of this.cards) card.put(given.get(name) ?? null);
    this.update();
  }

  mark(name, again = true) {
    this.target = again && name === this.target ? null : name;
    for (const [own, card] of this.cards) card.markTarget(own === this.target);
    this.panels.next.changed();
    if (again) this.update();
  }

  go(name) {
    const node = this.cards.get(name)?.node;
    if (!node) return;
    node.scrollIntoView({ block: "center", behavior: "smooth" });
    node.querySelector("input").focus({ preventScroll: true });
  }

  async answer() {
    clearTimeout(this.later);
    this.showKnown();
    const given = new Map(this.given);
    let found;
    try {
      found = await askModel(this.model.name, "/marginals", { given: Object.fromEntries(given), target: this.target });
    } catch (error) {
      tell(error.message);
      this.cards.forEach((card) => card.node.classList.add("stale"));
      write(this.usual, "");
      return;
    }
    tell(null);
    const changed = given.size > 0;
    for (const [name, card] of this.cards) {
      card.node.classList.remove("stale");
      card.draw(changed ? found.cards[name] ?? null : null, given.get(name) ?? null);
    }
    this.later = setTimeout(() => this.answerHeld(given), PAUSE);
    write(this.usual, changed ? usualText(found) : "");
    this.panels.text.show(found.texts);
    this.panels.next.changed();
    this.panels.draws.changed();
    document.documentElement.dataset.answered = String(Number(document.documentElement.dataset.answered ?? 0) + 1);
  }

  /** The columns that are known in part: asked for once the person pauses. */
  async answerHeld(given) {
    if (![...given].some(([name, condition]) => this.cards.get(name).isPart(condition))) return;
    try {
      const { cards } = await askModel(this.model.name, "/held", { given: Object.fromEntries(given) });
      const moved = JSON.stringify([...given]) !== JSON.stringify([...this.given]);
      if (!moved) for (const [name, card] of Object.entries(cards)) this.cards.get(name).draw(card, given.get(name));
    } catch {
      // The other cards are right: those that are held stay without numbers.
    }
  }

  /** What is known, one chip for each column. A chip that stays is only written again. */
  showKnown() {
    const names = [...this.given.keys()];
    if (this.chips.dataset.columns !== JSON.stringify(names)) {
      this.chips.dataset.columns = JSON.stringify(names);
      const hint = el("li", { class: "muted", text: "Nothing is held. Drag across a chart, pick levels or type a value." });
      this.chips.replaceChildren(...(names.length ? names.map((name) => this.chip(name)) : [hint]));
      this.reset.disabled = names.length === 0;
    }
    names.forEach((name, i) => {
      const button = this.chips.children[i].firstElementChild;
      const condition = this.given.get(name);
      const text = conditionText(name, condition);
      write(button, text);
      set(button, "aria-label", `Forget: ${text}`);
      button.classList.toggle("none", Boolean(condition.missing));
    });
  }

  chip(name) {
    const forget = () => { this.cards.get(name).put(null); this.set(name, null); };
    return el("li", {}, el("button", { type: "button", class: "chip", click: forget }));
  }
}

function usualText(found) {
  const unusual = found.unusual ? ", unlike the data" : "";
  if (found.probability === null) return `log p = ${found.log_evidence} (density)${unusual}`;
  return `log p = ${found.log_evidence}, ${found.probability} of rows${unusual}`;
}
