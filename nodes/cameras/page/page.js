"use strict";
// Asks for the state each half second; pictures come by streams of their own. All names are text.
const EVERY = 500, SVG = "http://www.w3.org/2000/svg";
const cards = new Map();
const ms = value => value === undefined ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

function card(name) {
  const made = document.getElementById("camera").content.firstElementChild.cloneNode(true);
  made.querySelector("h2").textContent = name;
  const picture = made.querySelector("img");
  picture.alt = `what ${name} sees`;
  picture.src = `/camera/${encodeURIComponent(name)}.mjpg`;
  document.getElementById("cameras").append(made);
  cards.set(name, made);
  return made;
}

function show(camera) {
  const made = cards.get(camera.name) || card(camera.name);
  const put = (key, text) => { made.querySelector(`[data-key="${key}"]`).textContent = text; };
  const state = made.querySelector(".state");
  state.textContent = state.dataset.state = camera.state;
  const error = made.querySelector(".error");
  error.hidden = !camera.error;
  error.textContent = camera.error;
  put("p50", ms(camera.age_ms.p50));
  put("p99", ms(camera.age_ms.p99));
  put("rate", camera.rate.toFixed(1));
  put("dropped", String(camera.dropped));
  put("decode", ms(camera.decode_ms));
  parts(made, camera.spent_ms);
}

function parts(made, spent) {
  const shown = Object.entries(spent).filter(([, value]) => value > 0);
  const whole = shown.reduce((sum, [, value]) => sum + value, 0) || 1;
  const bar = document.createElementNS(SVG, "svg");
  bar.setAttribute("viewBox", "0 0 1000 10");
  bar.setAttribute("preserveAspectRatio", "none");
  let left = 0;
  const rows = shown.map(([name, value], at) => {
    const part = document.createElementNS(SVG, "rect");
    part.setAttribute("x", 1000 * left / whole);
    part.setAttribute("width", 1000 * value / whole);
    part.setAttribute("height", 10);
    part.setAttribute("class", `c${at % 7}`);
    bar.append(part);
    left += value;
    const row = document.createElement("li"), sign = document.createElement("i");
    sign.className = `c${at % 7}`;
    row.append(sign, `${name} ${ms(value)}`);
    return row;
  });
  const held = made.querySelector(".bar");
  held.setAttribute("aria-label", `a frame's ${whole.toFixed(1)} ms by their parts`);
  held.replaceChildren(bar);
  made.querySelector(".parts").replaceChildren(...rows);
}

async function ask() {
  const link = document.getElementById("link");
  try {
    const answer = await fetch("/state.json", { signal: AbortSignal.timeout(3000) });
    const state = await answer.json();
    document.getElementById("model").textContent = `${state.model} · ${state.node}`;
    state.cameras.forEach(show);
    if (link.dataset.state === "lost")  // a stream that broke does not come back by itself
      for (const [name, made] of cards) made.querySelector("img").src = `/camera/${encodeURIComponent(name)}.mjpg?${Date.now()}`;
    link.textContent = link.dataset.state = "live";
  } catch {
    link.textContent = "the device does not answer";
    link.dataset.state = "lost";
  }
  setTimeout(ask, EVERY);
}
ask();
