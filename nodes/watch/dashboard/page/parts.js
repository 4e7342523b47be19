// Pieces that several pages show.

import { attribute, el, keyed, show, text } from "./dom.js";
import { age, clock, figure, HEALTH, LEVEL, ms, NONE, plural, short } from "./format.js";
import { now, store } from "./store.js";

export function sign() {
  return el("span", { class: "sign" }, el("span", { "aria-hidden": "true" }), el("span", { class: "unseen" }));
}

export function setSign(node, kinds, kind) {
  const [mark, word] = kinds[kind] ?? ["?", kind];
  text(node.firstChild, mark);
  text(node.lastChild, `${word}: `);
  attribute(node, "data-kind", kind);
}

export const nodeLink = (id, className = "") => el("a", { href: `#/node/${encodeURIComponent(id)}`, class: className, title: id, text: short(id) });

// --- the verdict ---------------------------------------------------------------------------

const LOST = { level: "bad", text: "Not known: the dashboard does not answer", problems: [] };

export function verdict() {
  const mark = sign();
  const line = el("p", { class: "line", id: "verdict-text" });
  const list = el("ul", { class: "problems" });
  const element = el("section", { class: "verdict", "aria-label": "State of the fleet" }, mark, el("div", {}, line, list));
  return {
    element,
    update() {
      const { level, text: said, problems } = store.lost ? LOST : store.verdict;
      attribute(element, "data-level", level);
      setSign(mark, LEVEL, level);
      text(line, said);
      const more = problems.length > 1 ? problems : [];
      keyed(
        list,
        more.map((problem, place) => ({ ...problem, place })),
        (problem) => problem.text,
        () => el("li", {}, sign(), el("a")),
        (item, problem) => {
          setSign(item.firstChild, LEVEL, problem.level);
          text(item.lastChild, problem.text);
          const where = problem.node ? `#/node/${encodeURIComponent(problem.node)}` : problem.model ? "#/models" : null;
          attribute(item.lastChild, "href", where);
        },
      );
    },
  };
}

// --- a pipeline ----------------------------------------------------------------------------

const COVER = { primary: "", standby: "a standby serves", fallback: "the fallback serves", none: "no node serves" };

// more: further parts of the card.
export function pipeline(...more) {
  const name = el("h3");
  const facts = el("p", { class: "facts" });
  const promise = el("p", { class: "objective" });
  const asking = el("ul", { class: "seats" });
  const anybody = el("p", { class: "cover", text: "any client of the mesh" });
  const flow = el("ol", { class: "flow" });
  const budget = budgetBar();
  const element = el(
    "article",
    { class: "pipeline card" },
    el("header", {}, name, facts, promise),
    el("div", { class: "river" }, el("div", { class: "asks" }, el("h4", { text: "who asks" }), asking, anybody), flow),
    budget.element,
    ...more.map((part) => part.element),
  );
  return {
    element,
    update(doc) {
      const key = `${doc.model}@${doc.version}`;
      text(name, key);
      attribute(element, "aria-label", `Pipeline ${key}`);
      const { p50, p99 } = latencyOf(doc);
      const share = doc.share === null || doc.share === undefined ? "" : doc.share ? `${figure(doc.share)} % of the traffic` : "no traffic";
      text(facts, [share, `${figure(doc.rate)} requests/s`, `p50 ${ms(p50)}`, `p99 ${doc.answers ? "" : "up to "}${ms(p99)}`].filter(Boolean).join(" · "));
      objective(promise, doc.model);
      const asks = askers(doc.model);
      show(anybody, asks.length === 0);
      keyed(
        asking,
        asks,
        (node) => node.node,
        seat,
        (item, node) => changeSeat(item, { node: node.node, kind: node.role, health: node.health, rate: node.rate, serves: true }),
      );
      keyed(flow, doc.stages, (stage) => stage.stage, makeStage, changeStage);
      for (const part of [budget, ...more]) part.update(doc);
    },
  };
}

const askers = (model) =>
  [...store.nodes.values()].filter((node) => ["edge", "gateway"].includes(node.role) && node.health !== "left" && (!node.model || node.model === model)).slice(0, 6);

// Whole requests, where somebody who asks has told; else the sums of the stages' own times, without
// the network. A sum of p99s is more than the p99 of the whole.
export function latencyOf(doc) {
  return doc.answers ?? { p50: doc.p50, p99: doc.p99 };
}

function makeStage(stage) {
  const item = el(
    "li",
    { class: "stage" },
    el("h4", {}, el("span", { text: `stage ${stage.stage}` })),
    el("p", { class: "cover" }),
    el("ul", { class: "seats" }),
    el("p", { class: "figures" }, el("b"), " ", el("span")),
  );
  return item;
}

function changeStage(item, stage) {
  const [, cover, seats, figures] = item.children;
  attribute(item, "data-cover", stage.cover);
  text(cover, COVER[stage.cover]);
  keyed(seats, shownSeats(stage.seats), (one) => one.node, seat, changeSeat);
  text(figures.firstChild, `${figure(stage.rate)}/s`);
  const waits = stage.waiting ? `, ${plural(stage.waiting, "message")} waiting` : "";
  const time = stage.compute[0] === null ? "idle" : `${ms(stage.compute[0])}, p99 ${ms(stage.compute[1])}`;
  text(figures.lastChild, `${time}${waits}`);
}

const MANY = 6; // seats that are shown one by one

// Of many replicas those that need a look are shown, and how many others are well.
function shownSeats(seats) {
  if (seats.length <= MANY) return seats;
  const plain = (one) => one.health === "well" && one.kind === "primary";
  const others = seats.filter((one) => !plain(one));
  const well = seats.length - others.length;
  const sum = { node: "", health: "well", kind: "primary", serves: true, many: `${plural(well, "primary").replace("primarys", "primaries")} well` };
  return [...(well ? [sum] : []), ...others.slice(0, MANY), ...(others.length > MANY ? [{ ...sum, node: "…", health: "busy", many: `and ${others.length - MANY} more` }] : [])];
}

function seat() {
  return el("li", { class: "seat" }, el("a", {}, sign(), el("span", { class: "id" }), el("span", { class: "kind" })));
}

// A standby or a fallback that takes work beside primaries helps: they are overloaded, or came back
// within the last seconds.
const covers = (one) => `${one.kind} ${one.alone ? "serves" : one.serves ? "helps" : "waits"}`;
const WORD = { primary: () => "", standby: covers, fallback: covers };

function changeSeat(item, one) {
  const link = item.firstChild;
  const [mark, id, kind] = link.children;
  attribute(item, "data-health", one.health);
  attribute(item, "data-kind", one.kind);
  attribute(item, "data-serves", one.alone ? "alone" : one.serves ? "yes" : "no");
  attribute(link, "href", one.many ? "#/nodes" : `#/node/${encodeURIComponent(one.node)}`);
  attribute(link, "title", one.many ?? one.node);
  setSign(mark, HEALTH, one.health);
  text(id, one.many ?? short(one.node));
  const word = ["well", "left"].includes(one.health) || one.many ? (WORD[one.kind]?.(one) ?? one.kind) : HEALTH[one.health][1];
  text(kind, word);
}

export function objective(line, name) {
  const promised = store.models.find((model) => model.model === name)?.objective;
  show(line, Boolean(promised));
  if (!promised) return;
  attribute(line, "data-level", promised.burning ? "bad" : "well");
  text(line, `${promised.burning ? "✕ misses" : "✓ keeps"} its objective: ${promised.text}`);
}

// --- where the time goes ---------------------------------------------------------------------

// A bar: for each stage its queue and its computing, then the network between the nodes.
export function budgetBar() {
  const bar = el("div", { class: "bar", role: "img" });
  const legend = el("ul", { class: "legend", "aria-hidden": "true" }, ...["queue", "compute", "network"].map((kind) => el("li", {}, el("span", { class: `swatch ${kind}` }), kind)));
  const words = el("p", { class: "where" });
  const rows = el("tbody");
  const table = el(
    "details",
    {},
    el("summary", { text: "Where the time goes, as a table" }),
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ...["stage", "queue p50 / p99 ms", "compute p50 / p99 ms", "requests/s"].map((h) => el("th", { scope: "col", text: h })))),
      rows,
    ),
  );
  const element = el("div", { class: "budget" }, el("div", { class: "heading" }, words, legend), bar, table);
  return {
    element,
    update(doc) {
      const parts = partsOf(doc);
      const room = Math.min(innerWidth, 1280) - 60; // pixels of the bar, about
      const whole = parts.reduce((sum, part) => sum + part.ms, 0);
      keyed(
        bar,
        parts,
        (part) => part.key,
        (part) => el("span", { class: `part ${part.kind}` }, el("span")),
        (item, part) => {
          const share = whole ? part.ms / whole : 0;
          const width = `${(share * 100).toFixed(1)}%`;
          if (item.style.width !== width) item.style.width = width;
          text(item.firstChild, share * room > 8 * part.short.length ? part.short : share * room > 12 ? part.stage : "");
          attribute(item, "title", `${part.name}: ${ms(part.ms)} (${Math.round(share * 100)} %)`);
        },
      );
      const worst = parts.reduce((most, part) => (part.ms > (most?.ms ?? 0) ? part : most), null);
      const said = worst
        ? `Of ${ms(whole)} (p50), most goes to ${worst.name}: ${ms(worst.ms)}, ${Math.round((worst.ms / whole) * 100)} %`
        : "No requests in the last ten seconds";
      text(words, said + (doc.answers?.about ? " (the network: about, from medians)" : worst && !doc.answers ? " (the network is not measured: nobody tells of whole requests)" : ""));
      attribute(bar, "aria-label", worst ? parts.map((part) => `${part.name} ${ms(part.ms)}`).join(", ") : "nothing measured");
      keyed(
        rows,
        doc.stages,
        (stage) => stage.stage,
        (stage) => el("tr", {}, el("th", { scope: "row", text: stage.stage }), el("td"), el("td"), el("td")),
        (row, stage) => {
          text(row.children[1], two(stage.queue));
          text(row.children[2], two(stage.compute));
          text(row.children[3], figure(stage.rate));
        },
      );
    },
  };
}

const two = ([p50, p99]) => (p50 === null ? NONE : `${figure(p50)} / ${figure(p99)}`);

function partsOf(doc) {
  const parts = [];
  for (const stage of doc.stages) {
    for (const kind of ["queue", "compute"]) {
      const value = stage[kind][0];
      if (value) parts.push({ key: `${stage.stage} ${kind}`, kind, ms: value, name: `stage ${stage.stage} ${kind === "queue" ? "queue" : "computing"}`, short: `stage ${stage.stage}`, stage: stage.stage });
    }
  }
  if (doc.answers?.network) parts.push({ key: "network", kind: "network", ms: doc.answers.network, name: "the network between nodes", short: "network", stage: "" });
  return parts;
}

// --- events ----------------------------------------------------------------------------------

export function eventList(label) {
  const element = el("ol", { class: "events", "aria-label": label });
  return {
    element,
    update(events) {
      keyed(element, events, (event) => event.number, makeEvent, changeEvent);
    },
  };
}

function makeEvent(event) {
  const mark = sign();
  setSign(mark, LEVEL, event.level);
  return el(
    "li",
    { "data-level": event.level },
    el("time", { datetime: new Date(event.at).toISOString(), text: clock(event.at) }),
    mark,
    el("span", { class: "kind", text: event.kind }),
    event.node ? nodeLink(event.node) : el("span"),
    el("span", { class: "said", text: event.text }),
    el("span", { class: "age" }),
  );
}

function changeEvent(item, event) {
  text(item.lastChild, age((now() - event.at) / 1000));
}
