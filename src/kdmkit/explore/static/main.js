// Starts the page: which models there are, one of them in view, light or dark.

import { ask, askModel, tell } from "./api.js";
import { remember, remembered } from "./address.js";
import { el } from "./dom.js";
import { showImages } from "./image.js";
import { showTable } from "./table.js";

const nav = document.getElementById("models");
const view = document.getElementById("view");
let chosen = remembered().model;
let shownModel = null;

async function refresh() {
  let state;
  try {
    state = await ask("state");
  } catch (error) {
    tell(error.message);
    if (error.status === 0) setTimeout(refresh, 2000);
    else view.replaceChildren();
    return;
  }
  tell(null);
  const names = state.models.map((model) => model.name);
  if (!names.includes(chosen)) chosen = names[0];
  tabs(state.models);
  await showModel(state.models.find((model) => model.name === chosen));
  if (state.models.some((model) => model.state === "loading")) setTimeout(refresh, 500);
}

function tabs(models) {
  const known = [...nav.children].map((button) => button.dataset.model).join("\n");
  if (known !== models.map((model) => model.name).join("\n")) {
    nav.replaceChildren(...models.map((model) => el("button", {
      type: "button", "data-model": model.name, text: model.name, click: () => choose(model.name),
    })));
  }
  for (const button of nav.children) {
    const state = models.find((model) => model.name === button.dataset.model).state;
    button.setAttribute("aria-current", button.dataset.model === chosen ? "page" : "false");
    button.classList.toggle("loading", state === "loading");
  }
}

function choose(name) {
  if (name === chosen) return;
  chosen = name;
  remember(name, {}, undefined);
  refresh();
}

// The way back to another model.
addEventListener("popstate", () => {
  const { model } = remembered();
  if (model === null || model === chosen) return;
  chosen = model;
  refresh();
});

async function showModel(model) {
  if (model.state !== "ready") {
    shownModel = null;
    const text = model.state === "failed" ? `This model could not be loaded: ${model.message}` : model.message;
    const kind = model.state === "failed" ? "problem" : "waiting";
    const now = view.firstElementChild;
    if (!now || now.textContent !== text) view.replaceChildren(el("p", { class: kind, role: "status", text }));
    return;
  }
  if (shownModel === model.name) return;
  shownModel = model.name;
  try {
    const described = await askModel(model.name, "");
    const root = el("div", { class: "model" });
    if (shownModel !== model.name) return;
    view.replaceChildren(root);
    if (described.kind === "table") showTable(root, described);
    else showImages(root, described);
    document.title = `${model.name} – kdmkit explore`;
  } catch (error) {
    shownModel = null;
    tell(error.message);
  }
}

// ---- light or dark

const theme = document.getElementById("theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function stored() {
  try { return localStorage.getItem("kdmkit-theme"); } catch { return null; }
}

function paint(name) {
  document.documentElement.dataset.theme = name;
  theme.textContent = name === "dark" ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Change to ${name === "dark" ? "light" : "dark"} colours`);
}

theme.addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("kdmkit-theme", name); } catch { /* private windows */ }
  paint(name);
});
prefersDark.addEventListener("change", () => { if (!stored()) paint(prefersDark.matches ? "dark" : "light"); });
paint(stored() ?? (prefersDark.matches ? "dark" : "light"));
refresh();
