// The picture in this browser: the last whole one, and every change since.

const POINTS = 300; // seconds of history, as the process keeps them
const EVENTS = 1000;

export const store = {
  at: 0, // ms since 1970, by the clock of the process
  heard: 0, // performance.now() of the last change
  mesh: "",
  link: { connected: false, since: 0, url: "", error: "" },
  verdict: { level: "note", text: "waiting for the first picture", problems: [] },
  nodes: new Map(),
  pipelines: [],
  models: [],
  offenders: [],
  server: {},
  events: [],
  history: { models: {}, learners: {} },
  lost: false, // whether the process of this page does not answer
  acts: { allowed: false, why: "", token: false },
};

// The clock of the process, now: ages are told by one clock.
export const now = () => (store.at ? store.at + (performance.now() - store.heard) : Date.now());

const PARTS = ["link", "verdict", "pipelines", "models", "offenders", "server"];

export function take(frame) {
  store.at = frame.at;
  store.heard = performance.now();
  if (frame.whole) {
    store.mesh = frame.mesh;
    store.nodes = new Map();
    store.events = [];
    store.history = frame.history;
  }
  for (const part of PARTS) if (part in frame) store[part] = frame[part];
  for (const [name, node] of Object.entries(frame.nodes ?? {})) store.nodes.set(name, node);
  for (const name of frame.gone ?? []) store.nodes.delete(name);
  const last = store.events.at(-1)?.number ?? 0;
  store.events.push(...(frame.events ?? []).filter((event) => event.number > last));
  if (store.events.length > EVENTS) store.events.splice(0, store.events.length - EVENTS);
  if (frame.points) append(frame.points);
}

function append(points) {
  const { models, learners } = store.history;
  for (const [key, point] of Object.entries(points.models)) {
    models[key] ??= point.map(() => []);
    models[key].forEach((column, place) => push(column, point[place]));
  }
  for (const [key, point] of Object.entries(points.learners)) push((learners[key] ??= []), point);
}

export function push(column, value) {
  column.push(value);
  if (column.length > POINTS) column.shift();
}
