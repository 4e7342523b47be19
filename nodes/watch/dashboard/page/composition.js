// The parts of a composition: what each asks, how long it takes, how often it ran and was left out.

import { attribute, el, keyed, show, text } from "./dom.js";
import { count, ms, NONE, pair } from "./format.js";

export function compositionPart() {
  const title = el("h4");
  const rows = el("tbody");
  const heads = ["part", "is", "ms p50 / p99", "runs", "left out"].map((name) => el("th", { scope: "col", text: name }));
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...heads)), rows);
  const element = el("section", { class: "composition wide", tabindex: 0 }, title, table);
  return {
    element,
    update(doc) {
      const parts = doc.parts ?? [];
      show(element, parts.length > 0);
      if (!parts.length) return;
      attribute(element, "aria-label", `Parts of ${doc.model}@${doc.version}`);
      const slowest = parts.reduce((most, part) => ((part.ms[0] ?? 0) > (most?.ms[0] ?? 0) ? part : most), null);
      text(title, `Composition of ${parts.length} parts${slowest ? `; most of the time: ${slowest.part}, ${ms(slowest.ms[0])}` : ""}`);
      keyed(rows, parts, (part) => part.part, makeRow, changeRow);
    },
  };
}

function makeRow(part) {
  return el("tr", {}, el("th", { scope: "row", text: part.part }), ...Array.from({ length: 4 }, () => el("td")));
}

function changeRow(row, part) {
  const values = [part.what, part.ms[0] === null ? NONE : pair(part.ms), count(part.runs), count(part.left_out)];
  values.forEach((value, place) => text(row.children[place + 1], value));
}
