"use strict";
const LABELLED = 30; // most tokens that stand at the axes of the large map
// Attention maps of one sentence in one or several models: a site, a layer, a head and a token are
// chosen, for all models together where they have them. All maps of a site have one scale of colours,
// so that a head that spreads evenly looks pale and even; a switch gives each map a scale of its own.
for (const place of document.querySelectorAll("[data-maps]")) {
  const models = JSON.parse(place.querySelector("script").textContent);
  const { site = Object.keys(models[0].sites)[0], layer = null, head = 0 } = place.dataset;
  const state = { site, layer: layer && Number(layer), head: Number(head), row: 0, own: false };
  const select = add(add(place, "label", "", "Attention: "), "select");
  const label = add(place, "label");
  const own = add(label, "input");
  own.type = "checkbox";
  label.append(" a colour scale for each map");
  own.addEventListener("change", () => { state.own = own.checked; show(); });
  const status = add(place, "p", "quiet");
  status.setAttribute("aria-live", "polite");
  const panels = add(place, "div", "models");
  const sites = new Set(models.flatMap((model) => Object.keys(model.sites)));
  for (const each of sites) add(select, "option", "", each).value = each;
  select.value = site;
  select.addEventListener("change", () => {
    Object.assign(state, { site: select.value, layer: null, head: 0, row: 0 });
    show();
  });
  show();

  // Whoever uses the keyboard stays on the same button.
  function show() {
    const { key } = document.activeElement.dataset;
    panels.replaceChildren();
    for (const model of models) if (model.sites[state.site]) panel(model, model.sites[state.site]);
    if (key) [...panels.querySelectorAll("button")].find((each) => each.dataset.key === key)?.focus();
  }

  // The greatest weight of all maps of the chosen site.
  function greatest() {
    const layers = models.flatMap((model) => model.sites[state.site]?.layers ?? []);
    return Math.max(...layers.map((layer) => Math.max(...heights(layer))));
  }

  function panel(model, site) {
    const shared = state.own ? null : greatest();
    if (state.layer === null) state.layer = Math.max(...site.layers.map((each) => each.layer));
    const layer = site.layers.find((each) => each.layer === state.layer) ?? site.layers.at(-1);
    const head = Math.min(state.head, layer.heads - 1);
    const row = Math.min(state.row, site.rows.length - 1);
    const box = add(panels, "section", "model");
    add(box, "h2", "", model.title);
    const place = `layer ${layer.layer}, head ${head}: ${site.axes.join(" → ")}`;
    add(box, "p", "quiet where", place);
    const queries = tokens(box, site.rows, "queries", site.axes[0]);
    const keys = tokens(box, site.columns, "keys", site.axes[1]);
    const views = add(box, "div", "views");
    const figure = add(views, "div", "figure");
    add(figure, "span", "quiet ylabel", site.axes[0]);
    ticks(figure, "row", site.rows);
    const canvas = add(figure, "canvas", "large");
    ticks(figure, "column", site.columns);
    add(figure, "span", "quiet xlabel", site.axes[1]);
    draw(canvas, layer, head, shared);
    canvas.style.aspectRatio = `${site.columns.length} / ${site.rows.length}`;
    scale(figure, shared ?? heights(layer)[head]);
    const name = models.length > 1 ? `${model.title}: ` : "";
    const shade = (query) => {
      queries.forEach((token, i) => token.classList.toggle("chosen", i === query));
      const weights = keys.map((_, j) => weight(layer, head, query, j));
      const highest = Math.max(shared ?? 0, ...weights, 1e-9);
      keys.forEach((token, j) => {
        token.style.background = `rgba(var(--ink), ${(0.4 * weights[j]) / highest})`;
        token.title = weights[j].toFixed(3);
      });
      const best = weights.indexOf(Math.max(...weights));
      status.textContent = `${name}${site.rows[query]} looks most at ${site.columns[best]} (${weights[best].toFixed(3)})`;
    };
    queries.forEach((token, i) => {
      token.dataset.key = `${models.indexOf(model)} query ${i}`;
      token.addEventListener("mouseenter", () => shade(i));
      token.addEventListener("focus", () => shade(i));
      token.addEventListener("click", () => { state.row = i; show(); });
    });
    canvas.addEventListener("mousemove", (event) => {
      const size = canvas.getBoundingClientRect();
      const i = at(event.clientY - size.top, size.height, site.rows.length);
      const j = at(event.clientX - size.left, size.width, site.columns.length);
      shade(i);
      status.textContent = `${name}${site.rows[i]} → ${site.columns[j]}: ${weight(layer, head, i, j).toFixed(4)}`;
    });
    canvas.addEventListener("mouseleave", () => shade(row));
    grid(views, site, layer, head, shared, models.indexOf(model));
    shade(row);
  }

  function grid(box, site, chosen, head, shared, number) {
    const across = Math.max(...site.layers.map((each) => each.heads));
    const cells = add(box, "div", "grid");
    cells.style.gridTemplateColumns = `auto repeat(${across}, minmax(0, 1fr))`;
    add(cells, "span", "quiet number", "layer \\ head");
    for (let i = 0; i < across; i++) add(cells, "span", "quiet number", String(i));
    for (const each of site.layers) {
      add(cells, "span", "quiet number", String(each.layer));
      for (let i = 0; i < across; i++) {
        if (i >= each.heads) { add(cells, "span"); continue; }
        const button = add(cells, "button");
        button.type = "button";
        button.dataset.key = `${number} head ${each.layer} ${i}`;
        button.title = `layer ${each.layer}, head ${i}`;
        button.setAttribute("aria-label", button.title);
        button.classList.toggle("chosen", each === chosen && i === head);
        button.setAttribute("aria-pressed", String(each === chosen && i === head));
        draw(add(button, "canvas"), each, i, shared);
        button.addEventListener("click", () => {
          Object.assign(state, { layer: each.layer, head: i });
          show();
        });
      }
    }
  }

  function tokens(box, texts, kind, title) {
    const line = add(box, "div", `tokens ${kind}`);
    add(line, "span", "quiet", `${title}: `);
    return texts.map((text) => {
      const token = add(line, kind === "queries" ? "button" : "span", "token", text);
      if (kind === "queries") token.type = "button";
      return token;
    });
  }
}

function add(parent, tag, kind = "", text = "") {
  const element = parent.appendChild(document.createElement(tag));
  if (kind) element.className = kind;
  if (text) element.textContent = text;
  return element;
}

// The tokens of an axis, if there is room for them: their letters shrink with the cells.
function ticks(figure, kind, texts) {
  if (texts.length > LABELLED) return;
  const line = add(figure, "div", `labels ${kind}s`);
  line.style.setProperty("--count", texts.length);
  for (const text of texts) add(line, "span", "", text).title = text;
}

function at(offset, size, count) {
  return Math.min(count - 1, Math.max(0, Math.floor((offset / size) * count)));
}

// The base64 text holds little-endian 16-bit shares of the way from least to most, [head, row, column].
function weight(layer, head, row, column) {
  layer.bytes ??= Uint8Array.from(atob(layer.weights), (letter) => letter.charCodeAt(0));
  const place = 2 * ((head * layer.rows + row) * layer.columns + column);
  const share = (layer.bytes[place] + 256 * layer.bytes[place + 1]) / 65535;
  return layer.least + share * (layer.most - layer.least);
}

// The greatest weight of each head of a layer.
function heights(layer) {
  layer.highest ??= Array.from({ length: layer.heads }, (_, head) => {
    let highest = 1e-9;
    for (let i = 0; i < layer.rows; i++) {
      for (let j = 0; j < layer.columns; j++) highest = Math.max(highest, weight(layer, head, i, j));
    }
    return highest;
  });
  return layer.highest;
}

function scale(box, highest) {
  const line = add(box, "div", "quiet scale");
  add(line, "span", "", "0");
  add(line, "span", "ramp");
  add(line, "span", "", `${highest.toPrecision(2)} attention weight`);
}

function draw(canvas, layer, head, shared) {
  canvas.width = layer.columns;
  canvas.height = layer.rows;
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").split(",").map(Number);
  const context = canvas.getContext("2d");
  const image = context.createImageData(layer.columns, layer.rows);
  const highest = shared ?? heights(layer)[head];
  for (let i = 0; i < layer.rows; i++) {
    for (let j = 0; j < layer.columns; j++) {
      image.data.set([...ink, (255 * weight(layer, head, i, j)) / highest], 4 * (i * layer.columns + j));
    }
  }
  context.putImageData(image, 0, 0);
}
