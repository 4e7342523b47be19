// The plan in force: a lane for each device, and in it the stages of its slot.

import { attribute, el, keyed, show, text } from "./dom.js";
import { HEALTH, ms, NONE, plural } from "./format.js";
import { nodeLink, setSign, sign } from "./parts.js";

export function planPart() {
  const title = el("h4");
  const why = el("p", { class: "why" });
  const lanes = el("ol", { class: "lanes" });
  const element = el("section", { class: "plan" }, title, why, lanes);
  return {
    element,
    update(doc) {
      const plan = doc.plan;
      show(element, Boolean(plan));
      if (!plan) return;
      attribute(element, "aria-label", `Plan of ${doc.model}@${doc.version}`);
      text(title, `Plan ${plan.number}${plan.frozen ? ", frozen" : ""}: ${plan.slots.map(said).join(", ")}`);
      text(why, [plan.lacking ? `cannot run: ${plan.lacking}` : plan.reason, plan.more ? `${plan.more} more nodes are not drawn` : ""].filter(Boolean).join(" · "));
      keyed(lanes, plan.lanes, (lane) => lane.node, makeLane, (item, lane) => changeLane(item, lane, plan));
    },
  };
}

// Stages, and how many nodes share them where that is not one that is there.
function said(slot) {
  const nodes = slot.replicas === 1 && slot.nodes === 1 ? "" : ` (${slot.nodes} of ${plural(slot.replicas, "node")})`;
  return `stages ${slot.first}–${slot.last}${nodes}`;
}

function makeLane(lane) {
  return el("li", { class: "lane" }, el("span", { class: "device" }, sign(), nodeLink(lane.node)), el("span", { class: "track" }, el("span", { class: "part compute" }, el("span"))), el("span", { class: "hop" }));
}

function changeLane(item, lane, plan) {
  const [device, track, hop] = item.children;
  const slot = lane.slot === null ? null : plan.slots[lane.slot];
  setSign(device.firstChild, HEALTH, lane.health);
  const bar = track.firstChild;
  show(bar, Boolean(slot));
  text(hop, slot ? `hop ${ms(slot.hop)}` : "fills no slot");
  if (!slot) return;
  const place = (stages) => `${((stages / plan.stages) * 100).toFixed(2)}%`;
  bar.style.marginLeft = place(slot.first - 1);
  bar.style.width = place(slot.last - slot.first + 1);
  const time = lane.ms === null ? NONE : ms(lane.ms);
  text(bar.firstChild, `${slot.first}–${slot.last}: ${time}`);
  attribute(bar, "title", `stages ${slot.first}–${slot.last}: ${time} of computing; a request waits ${ms(slot.hop)} before them (median)`);
}
