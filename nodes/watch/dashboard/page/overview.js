// The first page: what is wrong, where the milliseconds go, and what happened last.

import { lineChart } from "./chart.js";
import { compositionPart } from "./composition.js";
import { notesPart } from "./notes.js";
import { attribute, el, keyed, show, text } from "./dom.js";
import { count, figure } from "./format.js";
import { eventList, pipeline, verdict } from "./parts.js";
import { planPart } from "./plan.js";
import { store } from "./store.js";

const LAST_EVENTS = 8;

export function overview() {
  const state = verdict();
  const tiles = el("dl", { class: "tiles" });
  const lines = el("div", { class: "pipelines" });
  const none = el("p", { class: "empty", text: "No node serves a stage yet. Start one: swarm-node --role shard-1 --model NAME" });
  const charts = el("div", { class: "charts" });
  const events = eventList("Last events");
  const quiet = el("p", { class: "facts", text: "Nothing has happened since this dashboard started." });
  const element = el(
    "div",
    {},
    el("h2", { class: "unseen", text: "Overview" }),
    state.element,
    tiles,
    el("section", { "aria-label": "Pipelines" }, lines, none),
    el("section", { "aria-labelledby": "charts-title" }, el("h3", { id: "charts-title", class: "unseen", text: "Rates and latencies" }), charts),
    el(
      "section",
      { class: "card", "aria-labelledby": "events-title" },
      el("h3", { id: "events-title" }, "Last events ", el("a", { href: "#/events", class: "more", text: "all events" })),
      events.element,
      quiet,
    ),
  );
  return {
    element,
    title: "Overview",
    update() {
      state.update();
      keyed(tiles, tileRows(), (tile) => tile.name, makeTile, changeTile);
      show(none, store.pipelines.length === 0);
      keyed(lines, store.pipelines, keyOf, make(() => pipeline(planPart(), compositionPart(), notesPart())), (item, doc) => item.view.update(doc));
      keyed(charts, Object.keys(store.history.models).sort(), (key) => key, make(modelCharts), (item, key) => item.view.update(key));
      show(quiet, store.events.length === 0);
      events.update(store.events.slice(-LAST_EVENTS).reverse());
    },
  };
}

const keyOf = (doc) => `${doc.model}@${doc.version}`;

// Keeps a part beside its element, so that `keyed` can change it later.
function make(part) {
  return (item) => {
    const made = part(item);
    made.element.view = made;
    return made.element;
  };
}

function tileRows() {
  const nodes = [...store.nodes.values()].filter((node) => node.health !== "left");
  const well = nodes.filter((node) => node.health === "well").length;
  const rate = store.pipelines.reduce((sum, doc) => sum + (doc.rate ?? 0), 0);
  const worst = store.pipelines.reduce((most, doc) => Math.max(most, (doc.answers ?? doc).p99 ?? 0), 0);
  const waiting = store.pipelines.flatMap((doc) => doc.stages).reduce((sum, stage) => sum + stage.waiting, 0);
  return [
    { name: "nodes well", value: `${well} / ${nodes.length}`, level: well === nodes.length ? "well" : "warn" },
    { name: "requests/s", value: figure(rate) },
    { name: "slowest p99", value: worst ? `${figure(worst)} ms` : "–" },
    { name: "waiting", value: count(waiting) },
  ];
}

function makeTile(tile) {
  return el("div", { class: "tile" }, el("dt", { text: tile.name }), el("dd"));
}

function changeTile(item, tile) {
  text(item.lastChild, tile.value);
  attribute(item, "data-level", tile.level);
}

function modelCharts(key) {
  const rate = lineChart({ title: `${key}: requests a second`, series: [{ name: "rate", colour: 1 }] });
  const time = lineChart({
    title: `${key}: latency`,
    unit: "ms",
    series: [
      { name: "p50", colour: 2 },
      { name: "p99", colour: 3 },
    ],
  });
  const element = el("div", { class: "pair" }, el("div", { class: "card" }, rate.element), el("div", { class: "card" }, time.element));
  return {
    element,
    update(name) {
      const [rates, p50, p99, answer50, answer99] = store.history.models[name];
      rate.update([rates]);
      const whole = answer50.some((value) => value !== null);
      const objective = store.models.find((model) => name.startsWith(`${model.model}@`))?.objective;
      time.update(whole ? [answer50, answer99] : [p50, p99], objective?.p99_ms ?? null);
    },
  };
}
