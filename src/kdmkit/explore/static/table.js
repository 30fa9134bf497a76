// The view of a table: a card for every column, what is known, and panels of further questions.

import { askModel, tell } from "./api.js";
import { Card } from "./card.js";
import { remember, remembered } from "./address.js";
import { el, newest, set, write } from "./dom.js";
import { DrawsPanel, NextPanel, RowPanel, RulesPanel, TextPanel, TreePanel } from "./panels.js";
import { QueryBox } from "./query.js";
import { conditionText } from "./values.js";

// Milliseconds without a move after which a person pauses.
const PAUSE = 120;
// Tables with more columns make cards, and ask for them, when they are seen; on phones such cards start folded.
const FEW = 24;

const ORDERS = { table: "as in the table", name: "by name", information: "by information about the target", change: "by change" };

export function showTable(root, model) {
  return new TableView(root, model);
}

class TableView {
  constructor(root, model) {
    this.model = model;
    this.columns = new Map(model.columns.map((column) => [column.name, column]));
    this.given = new Map();
    this.target = model.targets[0] ?? null;
    this.cards = new Map();
    this.slots = new Map();
    this.seen = new Set();
    this.fresh = new Set();
    this.isWide = model.columns.length > FEW;
    this.isFolded = this.isWide && matchMedia("(max-width: 600px)").matches;
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
      next: new NextPanel(ask), tree: new TreePanel(ask, !this.isWide), draws: new DrawsPanel(ask), row: new RowPanel(ask), text: new TextPanel(),
    };
    if (model.rules.length) this.panels.rules = new RulesPanel(model.rules);
    this.query = new QueryBox(model, () => this.remember());
    this.place = el("section", { class: "cards", "aria-label": "Columns" });
    this.observer = new IntersectionObserver((entries) => this.watch(entries), { rootMargin: "400px" });
    for (const column of model.columns) this.addSlot(column);
    if (model.left_out.length) {
      this.place.append(el("p", { class: "left-out", text: `Not in the model: ${model.left_out.join(", ")}` }));
    }
    this.none = el("p", { class: "left-out", role: "status", hidden: true, text: "No column has this name." });
    this.place.append(this.none);
    root.append(this.query.node, summary, el("div", { class: "layout" },
      el("div", {}, this.toolbar(), this.place),
      el("aside", { class: "side", "aria-label": "More questions" }, ...Object.values(this.panels).map((panel) => panel.node))));
    this.update = newest(() => this.answer());
    this.restore();
    addEventListener("popstate", () => { if (root.isConnected) this.restore(); });
  }

  // ---- cards

  addSlot(column) {
    const slot = el("article", { class: "card slot", "data-column": column.name, "aria-label": column.name }, el("h2", { text: column.name }));
    this.slots.set(column.name, slot);
    this.place.append(slot);
    if (this.isWide) this.observer.observe(slot);
    else this.card(column.name);
  }

  /** The card of a column: made when it is first seen. */
  card(name) {
    const column = this.columns.get(name);
    if (!column || column.prior === null) return null;
    if (!this.cards.has(name)) {
      const card = new Card(column, (condition) => this.set(name, condition), () => this.mark(name));
      this.cards.set(name, card);
      const slot = this.slots.get(name);
      card.node.hidden = slot.hidden;
      card.fold(this.isFolded);
      slot.replaceWith(card.node);
      this.slots.set(name, card.node);
      card.markTarget(name === this.target);
      if (this.given.has(name)) card.put(this.given.get(name));
      if (this.isWide) {
        this.observer.unobserve(slot);
        this.observer.observe(card.node);
      } else this.seen.add(name);
    }
    return this.cards.get(name);
  }

  async watch(entries) {
    const names = [];
    for (const { target, isIntersecting } of entries) {
      const name = target.dataset.column;
      if (isIntersecting) {
        this.seen.add(name);
        names.push(name);
      } else this.seen.delete(name);
    }
    await this.load(names);
    for (const name of names) this.card(name);
    if (this.given.size > 0 && names.some((name) => !this.fresh.has(name))) this.update();
  }

  /** Asks for the distributions of columns that the view of a wide table lacks. */
  async load(names) {
    const missing = names.filter((name) => this.columns.get(name)?.prior === null);
    if (!missing.length) return;
    try {
      const { columns } = await askModel(this.model.name, "/columns", { columns: missing });
      for (const column of columns) Object.assign(this.columns.get(column.name), column);
    } catch (error) {
      tell(error.message);
    }
  }

  toolbar() {
    this.search = el("input", { type: "search", placeholder: "Find a column", "aria-label": "Find a column", input: () => this.filter() });
    this.order = el("select", { "aria-label": "Order of the columns", change: () => this.sort() },
      ...Object.entries(ORDERS).map(([value, text]) => el("option", { value, text })));
    const text = (folded) => (folded ? "Unfold all" : "Fold all");
    const fold = el("button", {
      type: "button", class: "quiet", text: text(this.isFolded), click: () => {
        this.isFolded = !this.isFolded;
        for (const card of this.cards.values()) card.fold(this.isFolded);
        this.place.classList.toggle("is-folded", this.isFolded);
        fold.textContent = text(this.isFolded);
      },
    });
    this.place.classList.toggle("is-folded", this.isFolded);
    const n = this.model.columns.length;
    return el("div", { class: "toolbar" }, this.search, this.order, fold, el("span", { class: "muted", text: `${n} columns` }));
  }

  filter() {
    const words = this.search.value.trim().toLowerCase();
    let n = 0;
    for (const [name, slot] of this.slots) {
      slot.hidden = !name.toLowerCase().includes(words);
      n += !slot.hidden;
    }
    this.none.hidden = n > 0;
  }

  /** Orders the cards: the target and the held columns come first. */
  async sort() {
    const names = [...this.slots.keys()];
    const place = new Map(this.model.columns.map((column, i) => [column.name, i]));
    let rank = (name) => place.get(name);
    try {
      if (this.order.value === "information") rank = await this.informationRank();
      if (this.order.value === "change") rank = await this.changeRank();
      tell(null);
    } catch (error) {
      tell(error.message);
    }
    const collator = new Intl.Collator(undefined, { numeric: true });
    const pinned = (name) => (name === this.target ? 0 : this.given.has(name) ? 1 : 2);
    names.sort((a, b) => pinned(a) - pinned(b)
      || (this.order.value === "name" ? collator.compare(a, b) : rank(a) - rank(b)));
    this.place.prepend(...names.map((name) => this.slots.get(name)));
  }

  async informationRank() {
    if (this.target === null) throw new Error("Mark a column as the target first.");
    const { columns } = await askModel(this.model.name, "/next", { target: this.target });
    const values = new Map(columns.map(({ column, information }) => [column, information]));
    return (name) => -(values.get(name) ?? 0);
  }

  async changeRank() {
    await this.load([...this.columns.keys()]);
    const { cards } = await askModel(this.model.name, "/marginals", { given: Object.fromEntries(this.given) });
    const values = new Map(Object.entries(cards).map(([name, { probabilities }]) => {
      const { prior } = this.columns.get(name);
      return [name, probabilities.reduce((sum, p, i) => sum + Math.abs(p - prior.probabilities[i]), 0)];
    }));
    return (name) => -(values.get(name) ?? 0);
  }

  // ---- what is known

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
    for (const [other, card] of this.cards) card.markTarget(other === this.target);
    this.panels.next.changed();
    if (again) this.update();
  }

  async go(name) {
    await this.load([name]);
    const card = this.card(name);
    if (!card) return;
    if (card.node.hidden) {
      this.search.value = "";
      this.filter();
    }
    card.fold(false);
    card.node.scrollIntoView({ block: "center", behavior: "smooth" });
    card.node.querySelector(".value").focus({ preventScroll: true });
  }

  /** What the address says: when the page is opened, and on the way back. */
  async restore() {
    const { given, target, query } = remembered();
    this.query.put(query);
    await this.load(Object.keys(given));
    for (const name of Object.keys(given)) this.card(name);
    this.mark(this.columns.has(target) ? target : target === null ? null : this.model.targets[0] ?? null, false);
    this.put(new Map(Object.entries(given).filter(([name]) => this.columns.has(name))));
  }

  // ---- answers

  async answer() {
    clearTimeout(this.later);
    this.showKnown();
    const given = new Map(this.given);
    const names = new Set(this.isWide ? this.seen : this.columns.keys());
    let reply;
    try {
      const body = { given: Object.fromEntries(given), target: this.target };
      if (this.isWide) body.columns = [...names];
      reply = await askModel(this.model.name, "/marginals", body);
    } catch (error) {
      tell(error.message);
      this.cards.forEach((card) => card.node.classList.add("stale"));
      write(this.usual, "");
      return;
    }
    tell(null);
    const changed = given.size > 0;
    this.fresh = changed ? names : new Set(this.columns.keys());
    for (const [name, card] of this.cards) {
      card.node.classList.toggle("stale", !this.fresh.has(name) && !given.has(name));
      if (!this.fresh.has(name) && !given.has(name)) continue;
      card.draw(changed && Object.hasOwn(reply.cards, name) ? reply.cards[name] : null, given.get(name) ?? null);
    }
    this.later = setTimeout(() => this.paused(given), PAUSE);
    write(this.usual, changed ? usualText(reply) : "");
    set(this.usual, "title", changed ? `log p = ${reply.log_evidence}${reply.probability === null ? " (density)" : ""}` : "");
    this.usual.classList.toggle("unusual", changed && reply.unusual);
    this.panels.text.show(reply.texts);
    this.panels.next.changed();
    this.panels.draws.changed();
    document.documentElement.dataset.answered = String(Number(document.documentElement.dataset.answered ?? 0) + 1);
  }

  paused(given) {
    this.remember();
    this.answerHeld(given);
  }

  remember() {
    remember(this.model.name, Object.fromEntries(this.given), this.target, this.query.asked);
  }

  /** The columns that are known in part: asked for once the person pauses. */
  async answerHeld(given) {
    if (![...given].some(([name, condition]) => this.card(name)?.isPart(condition))) return;
    try {
      const { cards } = await askModel(this.model.name, "/held", { given: Object.fromEntries(given) });
      const moved = JSON.stringify([...given]) !== JSON.stringify([...this.given]);
      if (!moved) for (const [name, card] of Object.entries(cards)) this.card(name).draw(card, given.get(name));
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
    const forget = () => { this.cards.get(name)?.put(null); this.set(name, null); };
    return el("li", {}, el("button", { type: "button", class: "chip", click: forget }));
  }
}

function usualText({ unusual, probability }) {
  const share = probability === null ? "" : `${probability} of rows`;
  const like = unusual ? "unlike the data" : probability === null ? "like the data" : "";
  return [share, like].filter(Boolean).join(", ");
}
