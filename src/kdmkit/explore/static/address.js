// The question in the address of the page: it can be shared, reloaded, and left by the back button.

const token = new URLSearchParams(location.hash.slice(1)).get("token");

function read() {
  return new URLSearchParams(location.hash.slice(1));
}

/** Model, conditions and target that the address names; a target of null was taken away. */
export function remembered() {
  const values = read();
  let given = {};
  try {
    const parsed = JSON.parse(values.get("given") ?? "{}");
    if (parsed !== null && typeof parsed === "object" && !Array.isArray(parsed)) given = parsed;
  } catch { /* an address that somebody changed */ }
  const valid = ([, condition]) => condition !== null && typeof condition === "object"
    && (condition.missing === true || Array.isArray(condition.values) || (condition.range !== null && typeof condition.range === "object"));
  const target = values.get("target");
  return { model: values.get("model"), query: values.get("ask") ?? "", given: Object.fromEntries(Object.entries(given).filter(valid)), target: target === "" ? null : target ?? undefined };
}

/** Puts a question into the address, with what is asked in text; another one than before is a step that the back button undoes. */
export function remember(model, given, target, query = "") {
  const values = new URLSearchParams();
  if (token !== null) values.set("token", token);
  values.set("model", model);
  if (Object.keys(given).length) values.set("given", JSON.stringify(given));
  if (target !== undefined) values.set("target", target ?? "");
  if (query) values.set("ask", query);
  const hash = `#${values}`;
  if (hash === location.hash) return;
  // The page as it was opened is a step of its own, however soon something is asked.
  if (query && !read().has("model")) remember(model, given, target);
  const isNew = read().has("model");
  history[isNew ? "pushState" : "replaceState"](null, "", hash);
}
