// Figures, ages and signs as people read them.

export const NONE = "–";

export function figure(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0";
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (value >= size) return (value / (unit === "k" ? 1e3 : size)).toFixed(1) + unit;
  }
  if (value < 0.01) return "<0.01";
  if (value < 10) return value.toFixed(2);
  return value < 100 ? value.toFixed(1) : value.toFixed(0);
}

// A number of things: whole where it is small.
export const count = (value) => (Number.isInteger(value) && value < 1e4 ? String(value) : figure(value));
export const ms = (value) => (value === null || value === undefined ? NONE : `${figure(value)} ms`);
export const pair = ([p50, p99]) => (p50 === null ? NONE : `${figure(p50)} / ${figure(p99)}`);
export const megabytes = (bytes) => (bytes ? `${figure(bytes / 1e6)} MB` : NONE);
export const percent = (part) => `${Math.round(part * 1000) / 10} %`;
export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

export function age(seconds) {
  if (seconds < 1.5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

export const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });

export const HEALTH = {
  well: ["✓", "well"],
  busy: ["…", "busy"],
  suspect: ["?", "suspected"],
  failed: ["!", "failed"],
  dead: ["✕", "gone"],
  left: ["○", "left"],
};

export const LEVEL = {
  well: ["✓", "well"],
  good: ["✓", "good news"],
  note: ["·", "note"],
  warn: ["▲", "warning"],
  bad: ["✕", "trouble"],
};

// An id holds the role and a random part. Short: as much as tells nodes apart at a glance.
export function short(id) {
  return id.length <= 18 ? id : `${id.slice(0, 9)}…${id.slice(-6)}`;
}
