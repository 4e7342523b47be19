// What happened, the newest first, with filters.

import { el, keyed, text } from "./dom.js";
import { plural } from "./format.js";
import { eventList } from "./parts.js";
import { store } from "./store.js";

const SHOWN = 300;

export function eventPage() {
  const changed = () => update();
  const search = el("input", { type: "search", id: "event-search", placeholder: "node, model, words", autocomplete: "off", oninput: changed });
  const kind = el("select", { id: "event-kind", onchange: changed });
  const level = el(
    "select",
    { id: "event-level", onchange: changed },
    el("option", { value: "", text: "everything" }),
    el("option", { value: "warn bad", text: "warnings and trouble" }),
    el("option", { value: "bad", text: "trouble only" }),
  );
  const count = el("p", { class: "count", role: "status" });
  const list = eventList("Events");
  const element = el(
    "div",
    {},
    el("h2", { text: "Events" }),
    el(
      "form",
      { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      el("label", { for: "event-search", text: "Find" }),
      search,
      el("label", { for: "event-kind", text: "Kind" }),
      kind,
      el("label", { for: "event-level", text: "Show" }),
      level,
      count,
    ),
    el("section", { class: "card", "aria-label": "Events" }, list.element),
  );

  function update() {
    const kinds = ["", ...new Set(store.events.map((event) => event.kind))].sort();
    keyed(kind, kinds, (name) => name, (name) => el("option", { value: name, text: name || "all kinds" }), () => {});
    const words = search.value.trim().toLowerCase();
    const found = store.events.filter(
      (event) =>
        (!kind.value || event.kind === kind.value) &&
        (!level.value || level.value.includes(event.level)) &&
        (!words || `${event.kind} ${event.node} ${event.teller} ${event.model} ${event.text}`.toLowerCase().includes(words)),
    );
    text(count, found.length === store.events.length ? plural(found.length, "event") : `${found.length} of ${plural(store.events.length, "event")}`);
    list.update(found.slice(-SHOWN).reverse());
  }
  return { element, title: "Events", update };
}
