// Line charts of the last minutes, drawn by hand in SVG: small, and readable in both themes.

import { attribute, el, svg, text } from "./dom.js";
import { count, figure, NONE, plural } from "./format.js";

const LEAST = 60; // seconds that are shown at the least; a point is one unit wide
const MOST = 300;
const HIGH = 100;

// series: [{name, colour: 1..6, dashed}]. update(columns): a column of values for each series.
// of: what a point is, a second or something else that has a number.
export function lineChart({ title, unit = "", series, least = 0, of = "second" }) {
  const lines = series.map(({ colour, dashed }) =>
    svg("path", { class: `line c${colour}${dashed ? " dashed" : ""}`, "vector-effect": "non-scaling-stroke" }),
  );
  const goal = svg("line", { class: "goal", x1: 0, x2: MOST, "vector-effect": "non-scaling-stroke", visibility: "hidden" });
  const cursor = svg("line", { class: "cursor", y1: 0, y2: HIGH, visibility: "hidden", "vector-effect": "non-scaling-stroke" });
  const grid = [0.25, 0.5, 0.75].map((part) =>
    svg("line", { class: "grid", x1: 0, x2: MOST, y1: HIGH * part, y2: HIGH * part, "vector-effect": "non-scaling-stroke" }),
  );
  const plot = svg("svg", { viewBox: `0 0 ${LEAST} ${HIGH}`, preserveAspectRatio: "none", role: "img" }, ...grid, goal, ...lines, cursor);
  const values = series.map(({ name, colour, dashed }) => {
    const value = el("b", { text: NONE });
    return { value, item: el("li", {}, el("span", { class: `key c${colour}${dashed ? " dashed" : ""}`, "aria-hidden": "true" }), `${name} `, value) };
  });
  const top = el("span", { class: "top-of-scale" });
  const when = el("span", { class: "when", text: "" });
  const oldest = el("span");
  const element = el(
    "figure",
    { class: "chart" },
    el("figcaption", {}, el("h3", { text: title }), el("ul", { class: "legend" }, ...values.map((v) => v.item))),
    el("div", { class: "plot" }, plot, top),
    el("div", { class: "below" }, oldest, when, el("span", { text: of === "second" ? "now" : "" })),
  );
  let drawn = series.map(() => []);
  let wide = LEAST;
  let looked = null; // the place under the pointer, points before now

  const tell = () => {
    const back = looked ?? 0;
    drawn.forEach((column, place) => {
      const value = column.at(-1 - back);
      text(values[place].value, value === null || value === undefined ? NONE : figure(value) + (unit && ` ${unit}`));
    });
    text(when, looked === null ? "" : of === "second" ? `${looked} s ago` : `${looked} before the last`);
  };
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const place = Math.round(((event.clientX - box.left) / box.width) * wide);
    looked = Math.max(0, Math.min(wide - 1, wide - place));
    attribute(cursor, "x1", wide - looked);
    attribute(cursor, "x2", wide - looked);
    attribute(cursor, "visibility", "visible");
    tell();
  });
  plot.addEventListener("pointerleave", () => {
    looked = null;
    attribute(cursor, "visibility", "hidden");
    tell();
  });

  return {
    element,
    update(columns, objective = null) {
      drawn = columns;
      let most = least;
      for (const column of columns) for (const value of column) if (value > most) most = value;
      if (objective && objective < most * 4) most = Math.max(most, objective);
      const scale = nice(most || 1);
      const length = Math.max(0, ...columns.map((column) => column.length));
      wide = Math.min(MOST, Math.max(of === "second" ? LEAST : 10, length));
      attribute(plot, "viewBox", `0 0 ${wide} ${HIGH}`);
      const back = wide < 90 ? `${wide} s ago` : `${Math.round(wide / 60)} min ago`;
      text(oldest, of === "second" ? back : `the last ${plural(length, of)}`);
      lines.forEach((line, place) => attribute(line, "d", path(columns[place] ?? [], scale, wide)));
      const shown = objective !== null && objective <= scale;
      attribute(goal, "visibility", shown ? "visible" : "hidden");
      if (shown) {
        attribute(goal, "y1", HIGH - (objective / scale) * HIGH);
        attribute(goal, "y2", HIGH - (objective / scale) * HIGH);
      }
      text(top, count(scale) + (unit && ` ${unit}`));
      const said = series.map(({ name }, place) => {
        const last = columns[place]?.at(-1);
        return `${name} ${last === null || last === undefined ? "not measured" : `${figure(last)} ${unit}`}`;
      });
      attribute(plot, "aria-label", `${title}: ${said.join(", ")}`);
      tell();
    },
  };
}

function path(column, scale, wide) {
  const steps = [];
  let pen = false;
  const first = wide - column.length + 1;
  column.forEach((value, place) => {
    if (value === null || value === undefined) {
      pen = false;
      return;
    }
    const high = HIGH - Math.min(1, value / scale) * (HIGH - 2) - 1;
    steps.push(`${pen ? "L" : "M"}${first + place} ${high.toFixed(1)}`);
    pen = true;
  });
  return steps.join("");
}

function nice(most) {
  const size = 10 ** Math.floor(Math.log10(most));
  return [1, 1.5, 2, 3, 4, 5, 7.5, 10].find((step) => step * size >= most) * size;
}
