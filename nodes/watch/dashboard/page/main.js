// The page as a whole: which part is shown, when it is drawn, and whether it is still true.

import { askWhatMayBeDone, takeToken } from "./actions.js";
import { attribute, show, text } from "./dom.js";
import { eventPage } from "./events.js";
import { clock } from "./format.js";
import { modelPage } from "./models.js";
import { nodePage } from "./node.js";
import { nodeTable } from "./nodes.js";
import { overview } from "./overview.js";
import { store } from "./store.js";
import { listen } from "./stream.js";
import { startTheme } from "./theme.js";

const main = document.getElementById("main");
const alarm = document.getElementById("alarm");
const link = document.getElementById("link");
const speak = document.getElementById("speak");
let page = null;
let shownAt = null;
let answers = true; // whether the process of this page answers
let drawing = false;
let spoken = "";

function choose() {
  const [, name = "", part = ""] = location.hash.split("/");
  if (name === "nodes") return nodeTable();
  if (name === "models") return modelPage();
  if (name === "events") return eventPage();
  if (name === "node") return nodePage(decoded(part));
  return overview();
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // an address that somebody typed
  }
}

function turn() {
  if (location.hash === shownAt) return;
  const first = shownAt === null;
  shownAt = location.hash;
  page = choose();
  main.replaceChildren(page.element);
  for (const anchor of document.querySelectorAll("#nav a")) {
    const here = anchor.hash === (shownAt || "#/") || (anchor.hash === "#/nodes" && shownAt.startsWith("#/node/"));
    attribute(anchor, "aria-current", here ? "page" : null);
  }
  draw();
  if (!first) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

function draw() {
  drawing = false;
  document.title = `${titleSign()} ${page.title} · ${store.mesh || "swarm"}`;
  text(document.getElementById("mesh"), store.mesh);
  drawLink();
  page.update();
  const { level, text: said } = store.verdict;
  if (said !== spoken && (level !== "note")) {
    spoken = said;
    text(speak, said);
  }
}

function titleSign() {
  if (!answers || !store.link.connected) return "✕";
  return { well: "✓", warn: "▲", bad: "✕" }[store.verdict.level] ?? "…";
}

function drawLink() {
  const state = !answers ? "lost" : store.link.connected ? "live" : store.at ? "away" : "starting";
  attribute(link, "data-state", state);
  text(link.firstElementChild, { live: "●", lost: "✕", away: "✕", starting: "…" }[state]);
  text(document.getElementById("link-text"), { live: "live", lost: "dashboard lost", away: "mesh unreachable", starting: "connecting" }[state]);
  store.lost = state === "lost";
  attribute(document.body, "data-stale", state === "lost" || state === "away" ? "yes" : null);
  const stale = {
    lost: "The dashboard does not answer. What you see below is old. The page tries again each second.",
    away: `The mesh cannot be reached${store.link.since ? ` since ${clock(store.link.since)}` : ""}: ${store.link.error || "no server answers"}. What you see below is old. The dashboard tries again each second.`,
  }[state];
  show(alarm, Boolean(stale));
  if (stale) text(alarm, stale);
}

function changed(alive) {
  if (alive && !answers) askWhatMayBeDone();
  answers = alive;
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
}

takeToken();
startTheme(document.getElementById("theme"));
addEventListener("hashchange", turn);
turn();
askWhatMayBeDone();
listen(changed);
