// Questions to the server. The token is in the part of the address after #, which is never sent by itself.

const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
const busy = document.getElementById("busy");
let open = 0;
let timer = 0;

export class Problem extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Asks the API; `body` makes it a POST. Returns JSON, or text where the answer is no JSON. */
export async function ask(path, body) {
  begin();
  try {
    const headers = { "X-Kdmkit-Token": token };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const options = { method: body === undefined ? "GET" : "POST", headers, cache: "no-store" };
    if (body !== undefined) options.body = JSON.stringify(body);
    let response;
    try {
      response = await fetch(`/api/${path}`, options);
    } catch {
      throw new Problem("The server does not answer. Is the command still running?", 0);
    }
    const isJson = (response.headers.get("content-type") ?? "").startsWith("application/json");
    const found = isJson ? await response.json() : await response.text();
    if (!response.ok) throw new Problem(found.error ?? `The server answered ${response.status}.`, response.status);
    return found;
  } finally {
    end();
  }
}

export function askModel(model, path, body) {
  return ask(`models/${encodeURIComponent(model)}${path}`, body);
}

// A bar is shown for questions that take longer than people notice.
function begin() {
  open += 1;
  document.documentElement.dataset.busy = String(open);
  if (open === 1) timer = setTimeout(() => { busy.hidden = false; }, 200);
}

function end() {
  open -= 1;
  document.documentElement.dataset.busy = String(open);
  if (open === 0) {
    clearTimeout(timer);
    busy.hidden = true;
  }
}

const problem = document.getElementById("problem");

/** Shows a message on the page; null takes it away. */
export function tell(message) {
  problem.hidden = message === null;
  problem.textContent = message ?? "";
}
