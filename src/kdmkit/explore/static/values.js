// Values that people type, and conditions as text.

const RANGE = /^(.+?)\s*(?:\.\.|…|\bto\b|–|\s-\s)\s*(.+)$/;
const NUMBERS = /^([-+]?[\d.,]+)-([-+]?[\d.,]+)$/;
const BOUND = /^(<=|>=|≤|≥|<|>)\s*(.+)$/;

/** What a text says about a column: a condition, null for nothing, or an Error. */
export function read(text, column) {
  const written = text.trim().replace(/^=\s*/, "");
  if (!written) return null;
  if (column.levels !== null) return readLevels(written, column);
  const value = (part) => readValue(part.trim(), column);
  try {
    const bound = BOUND.exec(written);
    if (bound) {
      const end = value(bound[2]);
      return { range: bound[1].startsWith("<") || bound[1] === "≤" ? { low: null, high: end } : { low: end, high: null } };
    }
    const range = RANGE.exec(written) ?? (isNumeric(column) ? NUMBERS.exec(written) : null);
    if (range) return { range: { low: value(range[1]), high: value(range[2]) } };
    return { values: [value(written)] };
  } catch (error) {
    return error;
  }
}

function isNumeric(column) {
  return typeof column.bins[0][0] === "number";
}

function readValue(text, column) {
  if (!isNumeric(column)) return text;
  const number = Number(text.replace(/(?<=\d),(?=\d{3}\b)/g, ""));
  if (text === "" || !Number.isFinite(number)) throw new Error(`Type a number of ${column.name}, for example ${column.prior.mean ?? column.labels[0].split(" – ")[0]}, or a range such as ${column.prior.interval.join(" to ")}.`);
  return number;
}

function readLevels(text, column) {
  const exact = find(text, column);
  const names = exact >= 0 ? [text] : text.split(",").map((part) => part.trim());
  const found = names.map((name) => find(name, column));
  const unknown = found.indexOf(-1);
  if (unknown >= 0) return new Error(`“${names[unknown]}” is no level of ${column.name}.`);
  return { values: found.map((i) => column.levels[i]) };
}

function find(name, column) {
  const exact = column.labels.indexOf(name);
  return exact >= 0 ? exact : column.labels.findIndex((label) => label.toLowerCase() === name.toLowerCase());
}

/** A condition as a person reads it. */
export function conditionText(name, condition) {
  if (condition.missing) return `${name} missing`;
  if (condition.values) return `${name} = ${condition.values.map(short).join(" or ")}`;
  const { low, high } = condition.range;
  if (low === null) return `${name} ≤ ${short(high)}`;
  if (high === null) return `${name} ≥ ${short(low)}`;
  return low === high ? `${name} = ${short(low)}` : `${name} ${short(low)} – ${short(high)}`;
}

function short(value) {
  if (typeof value === "number") return String(Number(value.toPrecision(8)));
  return String(value).replace(/ (00:00:00|23:59:59\.999999)$/, "");
}
