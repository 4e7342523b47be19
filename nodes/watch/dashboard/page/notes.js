// What people should know of a version: rows of tables, which features fill.

import { attribute, el, keyed, show, text } from "./dom.js";
import { setSign, sign } from "./parts.js";
import { LEVEL } from "./format.js";

export function notesPart() {
  const element = el("div", { class: "notes" });
  return {
    element,
    update(doc) {
      const notes = doc.notes ?? [];
      show(element, notes.length > 0);
      keyed(element, notes, (note) => note.about + Object.keys(note.cells).join(), makeNote, (item, note) => changeNote(item, note, doc));
    },
  };
}

function makeNote(note) {
  const heads = Object.keys(note.cells);
  const row = el("tr", {}, ...heads.map(() => el("td")));
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((name) => el("th", { scope: "col", text: name })))), el("tbody", {}, row));
  return el("section", { class: "wide", tabindex: 0 }, el("h4", {}, sign(), el("span", { text: note.about })), table);
}

function changeNote(item, note, doc) {
  attribute(item, "aria-label", `${note.about} of ${doc.model}@${doc.version}`);
  setSign(item.querySelector(".sign"), LEVEL, note.warns ? "warn" : "well");
  const cells = item.querySelectorAll("td");
  Object.values(note.cells).forEach((value, place) => text(cells[place], value));
}
