// Small helpers to make elements.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; functions are listeners, `class` and `text` are themselves. */
export function el(tag, options = {}, ...children) {
  return fill(document.createElement(tag), options, children);
}

export function svg(tag, options = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), options, children);
}

function fill(node, options, children) {
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Sets the text only where it changes: screen readers announce changes. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets an attribute only where it changes: the browser lays out again what is set. */
export function set(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Runs the last of many calls: one at a time, and the newest waiting one next. */
export function newest(run) {
  let running = false;
  let waiting = null;
  return async function call(...args) {
    waiting = args;
    if (running) return;
    running = true;
    try {
      while (waiting !== null) {
        const next = waiting;
        waiting = null;
        await run(...next);
      }
    } finally {
      running = false;
    }
  };
}
