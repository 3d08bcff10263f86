"use strict";
// Attention maps of one sentence in one or several models: a site, a layer, a head and a token are
// chosen, for all models together where they have them.
for (const place of document.querySelectorAll("[data-maps]")) {
  const models = JSON.parse(place.querySelector("script").textContent);
  const { site = Object.keys(models[0].sites)[0], layer = null, head = 0 } = place.dataset;
  const state = { site, layer: layer && Number(layer), head: Number(head), row: 0 };
  const select = add(add(place, "label", "", "Attention: "), "select");
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

  function show() {
    panels.replaceChildren();
    for (const model of models) if (model.sites[state.site]) panel(model, model.sites[state.site]);
  }

  function panel(model, site) {
    if (state.layer === null) state.layer = Math.max(...site.layers.map((each) => each.layer));
    const layer = site.layers.find((each) => each.layer === state.layer) ?? site.layers.at(-1);
    const head = Math.min(state.head, layer.heads - 1);
    const row = Math.min(state.row, site.rows.length - 1);
    const box = add(panels, "section", "model");
    add(box, "h2", "", model.title);
    const place = `layer ${layer.layer}, head ${head}: ${site.axes.join(" → ")}`;
    add(box, "p", "quiet where", place);
    const queries = tokens(box, site.rows, "queries");
    const keys = tokens(box, site.columns, "keys");
    const views = add(box, "div", "views");
    const canvas = add(views, "canvas", "large");
    draw(canvas, layer, head);
    canvas.style.aspectRatio = `${site.columns.length} / ${site.rows.length}`;
    const name = models.length > 1 ? `${model.title}: ` : "";
    const shade = (query) => {
      queries.forEach((token, i) => token.classList.toggle("chosen", i === query));
      const weights = keys.map((_, j) => weight(layer, head, query, j));
      const highest = Math.max(...weights, 1e-9);
      keys.forEach((token, j) => {
        token.style.background = `rgba(var(--ink), ${(0.4 * weights[j]) / highest})`;
        token.title = weights[j].toFixed(3);
      });
      const best = weights.indexOf(Math.max(...weights));
      status.textContent = `${name}${site.rows[query]} looks most at ${site.columns[best]} (${weights[best].toFixed(3)})`;
    };
    queries.forEach((token, i) => {
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
    grid(views, site, layer, head);
    shade(row);
  }

  function grid(box, site, chosen, head) {
    const across = Math.max(...site.layers.map((each) => each.heads));
    const cells = add(box, "div", "grid");
    cells.style.gridTemplateColumns = `repeat(${across}, minmax(0, 1fr))`;
    for (const each of site.layers) {
      for (let i = 0; i < across; i++) {
        if (i >= each.heads) { add(cells, "span"); continue; }
        const button = add(cells, "button");
        button.type = "button";
        button.title = `layer ${each.layer}, head ${i}`;
        button.setAttribute("aria-label", button.title);
        button.classList.toggle("chosen", each === chosen && i === head);
        draw(add(button, "canvas"), each, i);
        button.addEventListener("click", () => {
          Object.assign(state, { layer: each.layer, head: i });
          show();
        });
      }
    }
  }

  function tokens(box, texts, kind) {
    const line = add(box, "div", `tokens ${kind}`);
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

function at(offset, size, count) {
  return Math.min(count - 1, Math.max(0, Math.floor((offset / size) * count)));
}

// The base64 text holds little-endian 16-bit shares of 1, [head, row, column].
function weight(layer, head, row, column) {
  layer.bytes ??= Uint8Array.from(atob(layer.weights), (letter) => letter.charCodeAt(0));
  const place = 2 * ((head * layer.rows + row) * layer.columns + column);
  return (layer.bytes[place] + 256 * layer.bytes[place + 1]) / 65535;
}

function draw(canvas, layer, head) {
  canvas.width = layer.columns;
  canvas.height = layer.rows;
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").split(",").map(Number);
  const context = canvas.getContext("2d");
  const image = context.createImageData(layer.columns, layer.rows);
  let highest = 1e-9;
  for (let i = 0; i < layer.rows; i++) {
    for (let j = 0; j < layer.columns; j++) highest = Math.max(highest, weight(layer, head, i, j));
  }
  for (let i = 0; i < layer.rows; i++) {
    for (let j = 0; j < layer.columns; j++) {
      image.data.set([...ink, (255 * weight(layer, head, i, j)) / highest], 4 * (i * layer.columns + j));
    }
  }
  context.putImageData(image, 0, 0);
}
