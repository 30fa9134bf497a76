// Saves the chart and the numbers of a card.

import { el } from "./dom.js";

export function download(name, content) {
  const url = URL.createObjectURL(content);
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** The probabilities of a column before and now, as CSV. */
export function saveCsv(column, now) {
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  // A cell that starts as a formula would be one to a spreadsheet.
  const cell = (text) => quoted(/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text);
  const { probabilities: before } = column.prior;
  const rows = column.labels.map((label, i) => [cell(label), before[i], now.probabilities[i]].join(","));
  download(`${column.name}.csv`, new Blob([[`${cell(column.name)},before,now`, ...rows, ""].join("\r\n")], { type: "text/csv" }));
}

/** A bar for every bin or level, before in grey and now in colour, as PNG. */
export function savePng(column, now, title) {
  const canvas = el("canvas", { width: 960, height: 540 });
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const text = (words, x, y, size, align = "left", width = 900) => {
    pen.font = `${size}px system-ui, sans-serif`;
    pen.textAlign = align;
    pen.fillStyle = colour("--ink");
    pen.fillText(words, x, y, width);
  };
  pen.fillStyle = colour("--surface");
  pen.fillRect(0, 0, 960, 540);
  text(column.name, 40, 48, 26);
  text(title, 40, 78, 16);
  const { probabilities: before } = column.prior;
  const top = Math.max(...before, ...now.probabilities) || 1;
  const step = 880 / before.length;
  const gap = Math.min(2, step / 8);
  before.forEach((mass, i) => {
    for (const [value, name, x, width] of [[mass, "--before", 0, step - gap], [now.probabilities[i], "--after", step / 4, (step - gap) / 2]]) {
      pen.fillStyle = colour(name);
      pen.fillRect(40 + i * step + x, 480 - (370 * value) / top, width, (370 * value) / top);
    }
  });
  const few = column.labels.length <= 12;
  if (few) column.labels.forEach((label, i) => text(label, 40 + (i + 0.5) * step, 502, 14, "center", step - 4));
  else {
    text(column.labels[0].split(" – ")[0], 40, 502, 14);
    text(column.labels.at(-1).split(" – ").at(-1), 920, 502, 14, "right");
  }
  text("grey: before, colour: now", 920, 528, 13, "right");
  canvas.toBlob((blob) => download(`${column.name}.png`, blob));
}
