// What may be done from this page: only where the process allows it, and this browser has the token.

import { el, keyed, show, text } from "./dom.js";
import { store } from "./store.js";

const KEY = "swarm-token";

// The token comes in the address, behind #, and leaves it at once: it is in no log, and in no
// bookmark. It stays in this tab.
export function takeToken() {
  const found = /^#token=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEY, found[1]);
    history.replaceState(null, "", "#/");
  }
}

const bearer = () => ({ authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` });

export async function askWhatMayBeDone() {
  try {
    const answer = await fetch("/api/acts", { headers: bearer() });
    store.acts = await answer.json();
  } catch {
    store.acts = { allowed: false, why: "the dashboard does not answer", token: false };
  }
}

// Buttons for some acts. Each is asked about once more, in the page, before it is done.
export function actions(choices) {
  const buttons = el("div", { class: "buttons" });
  const said = el("p", { class: "said", role: "status" });
  const element = el("div", { class: "actions" }, buttons, said);
  const ask = el("p");
  const yes = el("button", { type: "button", class: "danger", text: "Yes, do it" });
  const no = el("button", { type: "button", text: "No" });
  const dialog = el("dialog", { "aria-label": "Are you sure?" }, ask, el("div", { class: "buttons" }, yes, no));
  element.append(dialog);
  let chosen = null;
  no.addEventListener("click", () => dialog.close());
  yes.addEventListener("click", () => {
    dialog.close();
    perform(chosen, said);
  });
  return {
    element,
    update() {
      const may = store.acts.allowed && store.acts.token;
      show(buttons, may);
      keyed(
        buttons,
        may ? choices() : [],
        (choice) => choice.label,
        (choice) =>
          el("button", {
            type: "button",
            text: choice.label,
            onclick: () => {
              chosen = choice;
              text(ask, `${choice.label}? It is done at once, with this dashboard's credentials.`);
              dialog.showModal();
            },
          }),
        () => {},
      );
    },
  };
}

async function perform(choice, said) {
  text(said, `${choice.label}: asked …`);
  try {
    const answer = await fetch("/api/act", {
      method: "POST",
      headers: { "content-type": "application/json", ...bearer() },
      body: JSON.stringify(choice.body),
    });
    const document = await answer.json();
    text(said, answer.ok ? `${choice.label}: done (${document.audit})` : `${choice.label}: ${document.error}`);
  } catch {
    text(said, `${choice.label}: the dashboard does not answer; look whether it was done`);
  }
}
