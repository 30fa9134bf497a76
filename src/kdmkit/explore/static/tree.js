// The tree of columns, one line for each: lines are as thick as the dependence is strong.

import { el, svg } from "./dom.js";

const ROW = 26;
const INDENT = 16;

/** The estimate and its interval as text. */
export const within = (value, [low, high]) => `${value.toFixed(3)} nats, 90 % interval: ${low.toFixed(3)} … ${high.toFixed(3)}`;

/** How much one column tells about another, in a word. */
export function strength(information) {
  if (information >= 0.5) return "very much";
  if (information >= 0.15) return "much";
  if (information >= 0.03) return "some";
  return information > 0 ? "little" : "nothing";
}

/** Depth-first lines of the tree from its best connected column. */
function lines(columns, links) {
  const near = new Map(columns.map((name) => [name, []]));
  for (const { columns: [a, b], information, interval } of links) {
    near.get(a).push({ name: b, information, interval });
    near.get(b).push({ name: a, information, interval });
  }
  const found = [];
  const seen = new Set();
  const weight = (name) => near.get(name).reduce((sum, link) => sum + link.information, 0);
  const visit = (name, depth, parent, information, interval) => {
    seen.add(name);
    const row = found.push({ name, depth, parent, information, interval }) - 1;
    const next = near.get(name).filter((link) => !seen.has(link.name)).sort((a, b) => b.information - a.information);
    for (const link of next) if (!seen.has(link.name)) visit(link.name, depth + 1, row, link.information, link.interval);
  };
  for (const name of [...columns].sort((a, b) => weight(b) - weight(a))) {
    if (!seen.has(name)) visit(name, 0, null, null);
  }
  return found;
}

export function drawTree({ columns, links }, go) {
  const rows = lines(columns, links);
  const top = Math.max(...links.map((link) => link.information), 1e-9);
  const deepest = Math.max(...rows.map((row) => row.depth));
  const indent = Math.min(INDENT, 110 / Math.max(1, deepest));
  const x = (depth) => 7 + depth * indent;
  const y = (row) => (row + 0.5) * ROW;
  const width = (information) => (1 + 6 * (information / top)).toFixed(1);
  const paths = rows.flatMap((row, i) => (row.parent === null ? [] : [svg("path", {
    d: `M${x(row.depth - 1)} ${y(row.parent)}V${y(i)}H${x(row.depth)}`, "stroke-width": width(row.information),
  })]));
  const dots = rows.map((row, i) => svg("circle", { cx: x(row.depth), cy: y(i), r: 4 }));
  const height = rows.length * ROW;
  const drawing = svg("svg", { width: x(deepest) + 8, height, "aria-hidden": "true" }, ...paths.reverse(), ...dots);
  const list = el("ul", { class: "branches" }, ...rows.map((row) => {
    const name = el("button", { type: "button", class: "link", text: row.name, title: row.name, click: () => go(row.name) });
    const value = row.information === null ? el("span", { class: "share" })
      : el("span", { class: "share", text: strength(row.information), title: within(row.information, row.interval) });
    const item = el("li", {}, name, value);
    item.style.paddingLeft = `${x(row.depth) + 10}px`;
    return item;
  }));
  const text = links.length ? "what a column tells about the one before; numbers on the words" : "All columns share one node.";
  return [el("div", { class: "drawn" }, drawing, list), el("p", { class: "muted unit", text })];
}
