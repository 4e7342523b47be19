// Models: which versions get the traffic, what was learned, what is promised.

import { actions } from "./actions.js";
import { lineChart } from "./chart.js";
import { attribute, el, keyed, show, text } from "./dom.js";
import { count, figure, ms, NONE, percent } from "./format.js";
import { budgetBar, latencyOf, nodeLink, objective } from "./parts.js";
import { store } from "./store.js";

const CURVES = 6; // learners whose curves are drawn; the table has all

export function modelPage() {
  const list = el("div", { class: "pipelines" });
  const none = el("p", { class: "empty", text: "No model is known here yet: swarm model push DIR" });
  const element = el("div", {}, el("h2", { text: "Models" }), none, list);
  return {
    element,
    title: "Models",
    update() {
      show(none, store.models.length === 0);
      keyed(
        list,
        store.models,
        (model) => model.model,
        (model) => {
          const made = card(model.model);
          made.element.view = made;
          return made.element;
        },
        (item, model) => item.view.update(model),
      );
    },
  };
}

function card(name) {
  const split = el("div", { class: "bar split", role: "img" });
  const facts = el("p", { class: "facts" });
  const promise = el("p", { class: "objective" });
  const rollout = el("p", { class: "objective" });
  const versions = el("div");
  const learning = learningPart(name);
  const act = actions(() => choices(name));
  const element = el("article", { class: "card", "aria-label": `Model ${name}` }, el("h3", { text: name }), facts, split, rollout, promise, act.element, versions, learning.element);
  return {
    element,
    update(model) {
      const shares = Object.entries(model.serve).filter(([, share]) => share > 0).map(([version, share]) => ({ version, share }));
      const known = model.known ? "" : "which version serves is not known to this dashboard · ";
      text(facts, `${known}policy ${model.policy}${model.previous ? ` · before: version ${model.previous}` : ""}`);
      attribute(split, "aria-label", shares.map(({ version, share }) => `version ${version}: ${figure(share)} % of the traffic`).join(", ") || "traffic split not known");
      show(split, shares.length > 0);
      keyed(
        split,
        shares,
        ({ version }) => version,
        () => el("span", { class: "part version" }, el("span")),
        (item, { version, share }) => {
          item.style.width = `${share}%`;
          text(item.firstChild, `version ${version}: ${figure(share)} %`);
        },
      );
      objective(promise, name);
      rolling(rollout, model.rollout);
      const pipelines = store.pipelines.filter((doc) => doc.model === name);
      keyed(versions, pipelines, (doc) => doc.version, versionPart, (item, doc) => item.view.update(doc));
      learning.update(model);
      act.update();
    },
  };
}

const ROLLING = { running: "…", done: "✓", "rolled-back": "▲" };

function rolling(line, rollout) {
  show(line, Boolean(rollout));
  if (!rollout) return;
  attribute(line, "data-level", { done: "well", "rolled-back": "bad" }[rollout.state] ?? null);
  text(line, `${ROLLING[rollout.state] ?? "?"} rollout of version ${rollout.version}: ${rollout.state}, ${figure(rollout.share)} % of the traffic${rollout.reason ? `: ${rollout.reason}` : ""}`);
}

function versionPart() {
  const title = el("h4");
  const budget = budgetBar();
  const element = el("section", {}, title, budget.element);
  const part = {
    update(doc) {
      const { p50, p99 } = latencyOf(doc);
      const weights = [...new Set(doc.stages.flatMap((stage) => stage.weights))].filter(Boolean).sort((a, b) => a - b);
      text(title, `version ${doc.version}: ${figure(doc.rate)} requests/s, p50 ${ms(p50)}, p99 ${ms(p99)}${weights.length ? `, weight version ${weights.join(", ")}` : ""}`);
      budget.update(doc);
    },
  };
  element.view = part;
  return element;
}

function learningPart(name) {
  const minted = lineChart({ title: "Accuracy of the weight versions, by their minters", unit: "%", series: [{ name: "minted", colour: 3 }], of: "version" });
  const holder = el("div");
  const rows = el("tbody");
  const element = el(
    "section",
    { hidden: true, "aria-label": `Learning of ${name}` },
    el("h4", { text: "Learning", class: "part-title" }),
    el("div", { class: "charts" }, holder, minted.element),
    el(
      "div",
      { class: "wide", tabindex: 0, role: "region", "aria-label": `Learners of ${name}` },
      el("table", {}, el("caption", { text: "Learners" }), el("thead", {}, el("tr", {}, ...["node", "accuracy", "weights", "rounds", "samples", "minted", "problem"].map((head) => el("th", { scope: "col", text: head })))), rows),
    ),
  );
  let shown = "";
  let curves = null;
  return {
    element,
    update(model) {
      show(element, model.learners.length > 0 || model.minted.length > 0);
      const names = model.learners.slice(0, CURVES).map((learner) => learner.node);
      if (names.join() !== shown) {
        shown = names.join();
        curves = lineChart({ title: "Held-out accuracy of the learners", unit: "%", series: names.map((node, place) => ({ name: node, colour: (place % 6) + 1 })), least: 100 });
        holder.replaceChildren(curves.element);
      }
      const inPercent = (column) => column.map((value) => (value === null ? null : value * 100));
      curves?.update(names.map((node) => inPercent(store.history.learners[node] ?? [])));
      show(minted.element, model.minted.length > 0);
      minted.update([inPercent(model.minted.map((one) => one.accuracy))]);
      keyed(rows, model.learners, (learner) => learner.node, (learner) => el("tr", {}, el("th", { scope: "row" }, nodeLink(learner.node)), ...Array.from({ length: 6 }, () => el("td"))), (row, learner) => {
        [learner.accuracy === null ? NONE : percent(learner.accuracy), learner.weights, count(learner.rounds), count(learner.samples), learner.minted, learner.problem || NONE].forEach((value, place) => text(row.children[place + 1], value));
      });
    },
  };
}

function choices(name) {
  const model = store.models.find((one) => one.model === name);
  if (!model) return [];
  const versions = store.pipelines.filter((doc) => doc.model === name).map((doc) => doc.version);
  const promotable = [...new Set([...versions, ...Object.keys(model.serve)])].filter((version) => model.serve[version] !== 100);
  return [
    ...promotable.map((version) => ({ label: `Promote version ${version}`, body: { act: "promote", model: name, version } })),
    ...(model.previous ? [{ label: `Roll back to version ${model.previous}`, body: { act: "rollback", model: name } }] : []),
  ];
}
