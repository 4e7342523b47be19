// Every node, a line each: sorted and filtered here.

import { attribute, el, keyed, text } from "./dom.js";
import { age, count, figure, HEALTH, megabytes, NONE, pair, plural } from "./format.js";
import { nodeLink, setSign, sign } from "./parts.js";
import { now, store } from "./store.js";

const worst = (node, part) => {
  let most = null;
  for (const stage of node.stages) if (stage[part][1] !== null && (!most || stage[part][1] > most[1])) most = stage[part];
  return most ?? [null, null];
};
const sum = (node, part) => node.stages.reduce((total, stage) => total + stage[part], 0);
const RANK = ["dead", "failed", "suspect", "busy", "well", "left"];

const COLUMNS = [
  { name: "state", by: (n) => RANK.indexOf(n.health), text: true },
  { name: "node", by: (n) => n.node, text: true },
  { name: "role", by: (n) => n.role, say: (n) => n.role, text: true },
  { name: "model", by: (n) => n.model, say: (n) => (n.model ? `${n.model}@${n.version}` : NONE), text: true },
  { name: "rate 1/s", by: (n) => -(n.rate ?? -1), say: (n) => figure(n.rate) },
  { name: "compute ms p50 / p99", by: (n) => -(worst(n, "compute")[1] ?? -1), say: (n) => pair(worst(n, "compute")) },
  { name: "queue ms p50 / p99", by: (n) => -(worst(n, "queue")[1] ?? -1), say: (n) => pair(worst(n, "queue")) },
  { name: "waiting", by: (n) => -sum(n, "waiting"), say: (n) => (n.stages.length ? count(sum(n, "waiting")) : NONE) },
  { name: "failed", by: (n) => -sum(n, "failed"), say: (n) => count(n.stages.length ? sum(n, "failed") : (n.edge.failed ?? null)) },
  { name: "weights", by: (n) => -Math.max(0, ...n.stages.map((s) => s.weights)), say: (n) => count(Math.max(0, ...n.stages.map((s) => s.weights)) || null) },
  { name: "memory", by: (n) => -n.rss, say: (n) => megabytes(n.rss) },
  { name: "host", by: (n) => n.host, say: (n) => n.host || NONE, text: true },
  { name: "heard", by: (n) => n.heard ?? 0, say: (n) => (n.heard === null ? NONE : age((now() - n.heard) / 1000)) },
];

export function nodeTable() {
  let order = 0;
  let turned = false;
  const search = el("input", { type: "search", id: "node-search", placeholder: "id, role, model, host", autocomplete: "off", oninput: () => update() });
  const trouble = el("input", { type: "checkbox", id: "node-trouble", onchange: () => update() });
  const shown = el("p", { class: "count", role: "status" });
  const heads = COLUMNS.map((column, place) =>
    el(
      "th",
      { scope: "col", class: column.text ? "words" : "" },
      el("button", {
        type: "button",
        text: column.name,
        onclick: () => {
          turned = order === place ? !turned : false;
          order = place;
          update();
        },
      }),
    ),
  );
  const body = el("tbody");
  const table = el("table", { class: "nodes" }, el("caption", { class: "unseen", text: "Nodes of the fleet" }), el("thead", {}, el("tr", {}, ...heads)), body);
  const element = el(
    "div",
    {},
    el("h2", { text: "Nodes" }),
    el(
      "form",
      { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      el("label", { for: "node-search", text: "Find" }),
      search,
      el("label", { class: "check" }, trouble, " only those in trouble"),
      shown,
    ),
    el("div", { class: "wide card", tabindex: 0, role: "region", "aria-label": "Table of nodes" }, table),
  );

  function update() {
    const wanted = search.value.trim().toLowerCase();
    const nodes = [...store.nodes.values()].filter(
      (node) =>
        (!wanted || `${node.node} ${node.role} ${node.model}@${node.version} ${node.host} ${node.state}`.toLowerCase().includes(wanted)) &&
        (!trouble.checked || node.health !== "well" || node.offence),
    );
    const by = COLUMNS[order].by;
    nodes.sort((a, b) => compare(by(a), by(b)) || compare(a.role, b.role) || compare(a.node, b.node));
    if (turned) nodes.reverse();
    heads.forEach((head, place) => attribute(head, "aria-sort", place === order ? (turned ? "descending" : "ascending") : null));
    text(shown, nodes.length === store.nodes.size ? plural(nodes.length, "node") : `${nodes.length} of ${plural(store.nodes.size, "node")}`);
    keyed(body, nodes, (node) => node.node, row, change);
  }
  return { element, title: "Nodes", update };
}

const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

function row(node) {
  const cells = COLUMNS.slice(2).map((column) => el("td", { class: column.text ? "words" : "", "data-name": column.name }));
  return el("tr", {}, el("td", { class: "words state" }, sign(), el("span")), el("th", { scope: "row", class: "words" }, nodeLink(node.node), el("span", { class: "offence" })), ...cells);
}

function change(item, node) {
  attribute(item, "data-health", node.health);
  setSign(item.firstChild.firstChild, HEALTH, node.health);
  text(item.firstChild.lastChild, node.health === "dead" ? "gone" : node.state);
  text(item.children[1].lastChild, node.offence ? `▲ not believed: ${node.offence}` : "");
  for (let place = 2; place < COLUMNS.length; place += 1) text(item.children[place], COLUMNS[place].say(node));
}
