// Making and changing elements. Everything that comes from a node goes through `text`, never
// through markup, so whatever a node calls itself stays text.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Changes a text only where it differs: what stays equal costs the browser nothing.
export function text(node, value) {
  const wanted = String(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function attribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

// Keeps one child of `parent` for each item, in order: makes those that are new, changes the
// others in place, so that focus, selection and animations stay.
export function keyed(parent, items, keyOf, make, change) {
  const kept = (parent.keyed ??= new Map());
  const wanted = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (wanted.has(key)) continue;
    wanted.add(key);
    let child = kept.get(key);
    if (!child) {
      child = make(item);
      kept.set(key, child);
    }
    if (child !== place) parent.insertBefore(child, place);
    else place = place.nextSibling;
    change(child, item);
  }
  for (const [key, child] of kept) {
    if (!wanted.has(key)) {
      child.remove();
      kept.delete(key);
    }
  }
}
