// The view of a classifier of images: draw one and see what it is; pick a label and see images of it.

import { askModel, tell } from "./api.js";
import { el, newest, write } from "./dom.js";

const PAD = 320;

export function showImages(root, model) {
  return new ImageView(root, model);
}

class ImageView {
  constructor(root, model) {
    this.model = model;
    this.strokes = [];
    this.pad = el("canvas", { class: "pad", width: PAD, height: PAD, "aria-label": "Draw here" });
    this.seen = el("canvas", { class: "seen", width: model.width, height: model.height, "aria-label": "What the model sees" });
    this.clear = el("button", { type: "button", class: "quiet", text: "Clear", click: () => this.empty() });
    this.rows = model.classes.map((label) => {
      const bar = el("span", { class: "bar after" });
      const share = el("span", { class: "share", text: "–" });
      return { bar, share, node: el("li", { "data-label": String(label) }, el("span", { class: "name", text: String(label) }), el("span", { class: "bars" }, bar), share) };
    });
    this.novelty = el("p", { class: "novelty" });
    this.gauge = el("div", { class: "gauge", role: "img", "aria-label": "Nothing is drawn" }, el("span", { class: "needle" }));
    this.labels = el("div", { class: "labels", role: "group", "aria-label": "Labels" }, ...model.classes.map((label) => el("button", {
      type: "button", text: String(label), "aria-pressed": "false", click: (event) => this.pick(label, event.currentTarget),
    })));
    this.spread = el("select", { "aria-label": "Spread of the images", change: () => this.again() },
      el("option", { value: "1", text: "as the model draws" }), el("option", { value: "0.3", text: "clearer, less varied", selected: true }));
    this.images = el("div", { class: "images" });
    root.append(el("div", { class: "image-view" },
      el("section", { class: "card", "aria-label": "Draw" }, el("header", {}, el("h2", { text: "Draw" }), this.clear),
        this.pad, el("div", { class: "seen-line" }, this.seen, el("span", { class: "muted", text: `the model sees ${model.width} × ${model.height} pixels` }))),
      el("section", { class: "card", "aria-label": "What it is" }, el("header", {}, el("h2", { text: "What it is" })),
        el("ol", { class: "ranked classes" }, ...this.rows.map((row) => row.node)),
        el("h3", { text: "How usual it is" }), this.gauge, this.novelty),
      el("section", { class: "card", "aria-label": "Images of a label" }, el("header", {}, el("h2", { text: "Images of a label" })),
        this.labels, this.spread, this.images, el("p", { class: "muted", text: "Choose an image to read it." }))));
    this.read = newest((pixels) => this.answer(pixels));
    this.listen();
    this.empty();
  }

  // ---- drawing

  listen() {
    let line = null;
    const at = (event) => {
      const box = this.pad.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * PAD, ((event.clientY - box.top) / box.height) * PAD];
    };
    this.pad.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.pad.setPointerCapture(event.pointerId);
      line = [at(event)];
      this.strokes.push(line);
      this.drawn();
      event.preventDefault();
    });
    this.pad.addEventListener("pointermove", (event) => {
      if (line === null) return;
      for (const one of event.getCoalescedEvents?.() ?? [event]) line.push(at(one));
      this.drawn();
    });
    for (const end of ["pointerup", "pointercancel"]) this.pad.addEventListener(end, () => { line = null; });
  }

  empty() {
    this.strokes = [];
    paint(this.pad.getContext("2d"), this.strokes, PAD, PAD, (point) => point, 26);
    this.showSeen(new Array(this.model.width * this.model.height).fill(this.model.low));
    for (const row of this.rows) {
      row.bar.style.width = "0";
      row.share.textContent = "–";
      row.node.classList.remove("best");
    }
    this.gauge.classList.add("off");
    this.gauge.setAttribute("aria-label", "Nothing is drawn");
    write(this.novelty, "Draw with the mouse or a finger.");
  }

  drawn() {
    paint(this.pad.getContext("2d"), this.strokes, PAD, PAD, (point) => point, 26);
    const pixels = this.scaled();
    this.showSeen(pixels);
    this.read(pixels);
  }

  /**
   * The drawing at the size of the model's images: moved and scaled into the frame that those fill, with a pen that
   * gives it as much ink as those have.
   */
  scaled() {
    const { width, height, low, high, ink } = this.model;
    const side = Math.max(width, height);
    const [thin, thick] = [side / 10, side / 3.2];
    let pen = 1.5 * (side / 8);
    let shares = this.rastered(pen);
    for (let round = 0; round < 4; round += 1) {
      const found = shares.reduce((sum, share) => sum + share, 0) / shares.length;
      const next = Math.min(thick, Math.max(thin, pen * (ink / found)));
      if (Math.abs(next - pen) < 0.02 * pen) break;
      pen = next;
      shares = this.rastered(pen);
    }
    return shares.map((share) => Number((low + (high - low) * share).toFixed(3)));
  }

  /** The share of each pixel that lines of a width, in pixels, cover. */
  rastered(pen) {
    const { width, height, box: [top, left, bottom, right] } = this.model;
    const points = this.strokes.flat();
    const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
    const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const fine = Math.max(width, height) > 16 ? 4 : 8;
    const room = [(right - left + 1 - pen) * fine, (bottom - top + 1 - pen) * fine];
    const scale = Math.min(room[0] / Math.max(x1 - x0, 1), room[1] / Math.max(y1 - y0, 1), (4 * fine * Math.max(width, height)) / PAD);
    const centre = [((left + right + 1) / 2) * fine, ((top + bottom + 1) / 2) * fine];
    const place = ([x, y]) => [centre[0] + (x - (x0 + x1) / 2) * scale, centre[1] + (y - (y0 + y1) / 2) * scale];
    const [columns, rows] = [width * fine, height * fine];
    this.fine ??= el("canvas", { width: columns, height: rows }).getContext("2d", { willReadFrequently: true });
    paint(this.fine, this.strokes, columns, rows, place, pen * fine);
    const { data } = this.fine.getImageData(0, 0, columns, rows);
    const shares = new Array(width * height).fill(0);
    for (let y = 0; y < rows; y += 1) {
      for (let x = 0; x < columns; x += 1) {
        shares[Math.floor(y / fine) * width + Math.floor(x / fine)] += data[4 * (y * columns + x)] / (255 * fine * fine);
      }
    }
    return shares;
  }

  showSeen(pixels) {
    grey(this.seen, pixels, this.model);
  }

  // ---- answers

  async answer(pixels) {
    let found;
    try {
      found = await askModel(this.model.name, "/read", { pixels });
    } catch (error) {
      tell(error.message);
      return;
    }
    tell(null);
    const best = found.probabilities.indexOf(Math.max(...found.probabilities));
    this.rows.forEach((row, i) => {
      row.bar.style.width = `${100 * found.probabilities[i]}%`;
      write(row.share, found.shares[i]);
      row.node.classList.toggle("best", i === best);
    });
    const percent = Math.round(100 * found.usual);
    this.gauge.classList.remove("off");
    this.gauge.firstElementChild.style.left = `${percent}%`;
    this.gauge.setAttribute("aria-label", `More probable than ${percent} % of the model's own draws`);
    const verdict = percent === 0 ? "Novel: less probable than the model's own draws." : `More probable than ${percent} % of the model's own draws.`;
    write(this.novelty, `log p(x) = ${found.log_density}. ${verdict}`);
    document.documentElement.dataset.answered = String(Number(document.documentElement.dataset.answered ?? 0) + 1);
  }

  async pick(label, button) {
    for (const other of this.labels.children) other.setAttribute("aria-pressed", String(other === button));
    this.label = label;
    await this.again();
  }

  async again() {
    if (this.label === undefined) return;
    let found;
    try {
      found = await askModel(this.model.name, "/images", { label: this.label, n: 12, spread: Number(this.spread.value) });
    } catch (error) {
      tell(error.message);
      return;
    }
    tell(null);
    this.images.replaceChildren(...found.images.map((pixels, i) => {
      const canvas = el("canvas", { width: this.model.width, height: this.model.height });
      grey(canvas, pixels, this.model);
      return el("button", { type: "button", class: "image", "aria-label": `Image ${i + 1} of ${this.label}`, click: () => this.take(pixels) }, canvas);
    }));
  }

  /** Reads an image that the model drew. */
  take(pixels) {
    this.empty();
    const context = this.pad.getContext("2d");
    context.imageSmoothingEnabled = true;
    const canvas = el("canvas", { width: this.model.width, height: this.model.height });
    grey(canvas, pixels, this.model);
    context.drawImage(canvas, 0, 0, PAD, PAD);
    this.showSeen(pixels);
    this.read(pixels);
  }
}

/** White lines on black. */
function paint(context, strokes, width, height, place, pen) {
  context.fillStyle = "#000";
  context.fillRect(0, 0, width, height);
  Object.assign(context, { strokeStyle: "#fff", lineWidth: pen, lineCap: "round", lineJoin: "round" });
  for (const line of strokes) {
    const [first, ...rest] = line.map(place);
    context.beginPath();
    context.moveTo(...first);
    if (!rest.length) context.lineTo(first[0] + 0.01, first[1]);
    for (const point of rest) context.lineTo(...point);
    context.stroke();
  }
}

function grey(canvas, pixels, { width, height, low, high }) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  pixels.forEach((pixel, i) => {
    const level = Math.max(0, Math.min(255, (255 * (pixel - low)) / (high - low)));
    image.data.set([level, level, level, 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
}
