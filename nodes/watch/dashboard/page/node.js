// One node: how it is, what it serves, its last minutes, what happened to it.

import { actions } from "./actions.js";
import { lineChart } from "./chart.js";
import { el, keyed, show, text, attribute } from "./dom.js";
import { age, clock, count, figure, HEALTH, megabytes, ms, NONE, pair, percent } from "./format.js";
import { eventList, setSign, sign } from "./parts.js";
import { now, push, store } from "./store.js";

const FIGURES = ["rate", "queue_p99", "compute_p50", "compute_p99", "waiting", "rss"];

export function nodePage(id) {
  const mark = sign();
  const title = el("h2", {}, mark, el("span", { text: id }));
  const absent = el("p", { class: "empty", text: "This node is not known: it left, or it never spoke here." });
  const facts = el("dl", { class: "facts-list" });
  const stages = el("tbody");
  const stageTable = el(
    "div",
    { class: "wide card", tabindex: 0, role: "region", "aria-label": "Stages of this node" },
    el(
      "table",
      {},
      el("caption", { text: "Stages" }),
      el("thead", {}, el("tr", {}, ...["stage", "version", "weights", "rate 1/s", "compute ms p50 / p99", "queue ms p50 / p99", "waiting", "served", "failed", "refused"].map((name) => el("th", { scope: "col", text: name })))),
      stages,
    ),
  );
  const charts = [
    lineChart({ title: "Requests a second", series: [{ name: "rate", colour: 1 }] }),
    lineChart({ title: "Computing", unit: "ms", series: [{ name: "p50", colour: 2 }, { name: "p99", colour: 3 }] }),
    lineChart({ title: "Queue p99", unit: "ms", series: [{ name: "p99", colour: 4 }] }),
    lineChart({ title: "Memory", unit: "MB", series: [{ name: "resident", colour: 5 }] }),
  ];
  const events = eventList(`Events of ${id}`);
  const act = actions(() => [{ act: "drain", label: "Drain this node", node: id, body: { act: "drain", node: id } }]);
  const element = el(
    "div",
    {},
    el("p", {}, el("a", { href: "#/nodes", text: "← all nodes" })),
    title,
    absent,
    act.element,
    el("div", { class: "card" }, facts),
    stageTable,
    el("div", { class: "charts four" }, ...charts.map((chart) => el("div", { class: "card" }, chart.element))),
    el("section", { class: "card", "aria-label": "Events" }, el("h3", { text: "Events" }), events.element),
  );

  let history = null;
  let second = 0;
  fetch(`/api/node/${encodeURIComponent(id)}/history`)
    .then((answer) => (answer.ok ? answer.json() : null))
    .then((found) => {
      history = found;
    })
    .catch(() => {
      history = null; // the next points come with the stream
    });

  return {
    element,
    title: id,
    update() {
      const node = store.nodes.get(id);
      show(absent, !node);
      show(act.element, Boolean(node) && node.health !== "dead" && node.health !== "left");
      act.update();
      events.update(store.events.filter((event) => event.node === id || event.teller === id).slice(-100).reverse());
      if (!node) return;
      setSign(mark, HEALTH, node.health);
      keyed(facts, factsOf(node), ([name]) => name, ([name]) => el("div", {}, el("dt", { text: name }), el("dd")), (item, [, value, level]) => {
        text(item.lastChild, value);
        attribute(item, "data-level", level ?? null);
      });
      show(stageTable, node.stages.length > 0);
      keyed(stages, node.stages, (stage) => `${stage.version} ${stage.stage}`, () => el("tr", {}, el("th", { scope: "row" }), ...Array.from({ length: 9 }, () => el("td"))), changeStage);
      history = grown(history, node);
      const part = (name) => history[FIGURES.indexOf(name)] ?? [];
      charts[0].update([part("rate")]);
      charts[1].update([part("compute_p50"), part("compute_p99")]);
      charts[2].update([part("queue_p99")]);
      charts[3].update([part("rss").map((bytes) => (bytes === null ? null : bytes / 1e6))]);
    },
  };

  // Appends a point a second to what the process had kept when this page was opened.
  function grown(known, node) {
    const columns = Array.isArray(known) ? known : FIGURES.map((name) => known?.[name] ?? []);
    const current = Math.floor(now() / 1000);
    if (current === second) return columns;
    second = current;
    const gone = node.health === "dead" || node.health === "left";
    const most = (name, place) => node.stages.reduce((top, stage) => (stage[name][place] !== null ? Math.max(top ?? 0, stage[name][place]) : top), null);
    const point = [node.rate, most("queue", 1), most("compute", 0), most("compute", 1), node.stages.reduce((all, stage) => all + stage.waiting, 0), node.rss];
    columns.forEach((column, place) => push(column, gone ? null : point[place]));
    return columns;
  }
}

function factsOf(node) {
  const rows = [
    ["state", node.health === "dead" ? "gone" : node.state, node.health === "well" ? "well" : "warn"],
    ["detail", node.detail || NONE],
    ["role", `${node.role}${node.kind === "primary" ? "" : ` (${node.kind})`}`],
    ["model", node.model ? `${node.model}@${node.version}` : NONE],
    ["host", `${node.host || NONE}, pid ${node.pid}`],
    ["software", node.software || NONE],
    ["requests/s", figure(node.rate)],
    ["memory", megabytes(node.rss)],
    ["ready after", node.ready_ms ? ms(node.ready_ms) : NONE],
    ["in this state since", node.since ? clock(node.since) : NONE],
    ["last heard", node.heard === null ? "not by this dashboard" : age((now() - node.heard) / 1000)],
    ["sees", `${node.peers.alive} alive, ${node.peers.suspect} suspected, ${node.peers.dead} dead`],
  ];
  if (node.gossip_refused) rows.push(["gossip not believed", count(node.gossip_refused)]);
  if (node.offence) rows.push(["not believed", node.offence, "warn"]);
  for (const [name, value] of Object.entries(node.edge)) rows.push([`${name} (edge)`, count(value)]);
  for (const camera of node.cameras) {
    const said = `${camera.state}, age ${pair(camera.age)} ms (p50 / p99), ${count(camera.sent)} of ${count(camera.frames)} frames sent, ${count(camera.dropped)} dropped`;
    rows.push([`camera ${camera.name}`, camera.error ? `${said}: ${camera.error}` : said, camera.state === "running" ? null : "warn"]);
  }
  for (const stage of node.sessions) {
    const pace = stage.between[0] === null ? "" : `, ${pair(stage.between)} ms between tokens (p50 / p99)`;
    rows.push([`sessions at ${stage.model}/${stage.stage}`, `${stage.sessions} of ${stage.slots}, ${count(stage.tokens)} tokens, KV ${megabytes(stage.kv_bytes)}${pace}`]);
  }
  const learns = node.learning;
  if (learns) {
    rows.push(["learns", `${learns.model}@${learns.version}, weight version ${learns.weights}`]);
    rows.push(["held-out accuracy", learns.accuracy === null ? NONE : percent(learns.accuracy)]);
    rows.push(["samples", `${learns.samples}, ${learns.rounds} rounds, ${learns.minted} minted`]);
    if (learns.problem) rows.push(["problem of learning", learns.problem, "warn"]);
  }
  return rows;
}

function changeStage(row, stage) {
  const values = [stage.stage, stage.version, stage.weights, figure(stage.rate), pair(stage.compute), pair(stage.queue), stage.waiting, count(stage.served), count(stage.failed), count(stage.refused)];
  values.forEach((value, place) => text(row.children[place], value));
}
