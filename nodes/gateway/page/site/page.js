// The models of a gateway, lines to paste for each, and pictures for those that say what they see.
// Whatever a model calls itself goes through `textContent`, never through markup.

const LONGEST_SIDE = 1280; // pixels of a picture that is sent
const LANGUAGES = { curl: "curl", python: "Python", javascript: "JavaScript" };
const place = (id) => document.getElementById(id);
let key = "";

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

async function ask(path, options = {}) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const answer = await fetch(path, { ...options, headers });
  const document = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(document.error), { code: answer.status });
  return document;
}

function tensors(title, list) {
  const rows = list.map((one) =>
    el("li", {}, el("code", {}, `${one.name} ${one.datatype} [${one.shape.join(", ")}]`)));
  return el("section", {}, el("h3", {}, title), el("ul", {}, ...rows));
}

function line(language, text, model) {
  const copy = el("button", {
    type: "button",
    "aria-label": `Copy the ${LANGUAGES[language]} line of ${model}`,
    onclick: async () => {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    },
  }, "Copy");
  if (!navigator.clipboard) copy.hidden = true; // a browser keeps it from pages without TLS
  return el("section", {},
    el("div", { class: "line" }, el("h3", {}, LANGUAGES[language]), copy),
    el("pre", { tabindex: "0", "data-language": language, role: "region",
      "aria-label": `${LANGUAGES[language]} line of ${model}` }, text));
}

// --- pictures ---------------------------------------------------------------------------------

async function pixelsOf(file, canvas) {
  const picture = await createImageBitmap(file);
  const scale = Math.min(1, LONGEST_SIDE / Math.max(picture.width, picture.height));
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const rgba = pen.getImageData(0, 0, canvas.width, canvas.height).data;
  const rgb = new Uint8Array((rgba.length / 4) * 3);
  for (let from = 0, to = 0; from < rgba.length; from += 4) {
    rgb[to++] = rgba[from];
    rgb[to++] = rgba[from + 1];
    rgb[to++] = rgba[from + 2];
  }
  return rgb;
}

function drawBoxes(canvas, detections) {
  const pen = canvas.getContext("2d");
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--box");
  pen.lineWidth = Math.max(2, canvas.width / 300);
  pen.strokeStyle = colour;
  for (const { box: [left, top, right, bottom] } of detections) {
    pen.strokeRect(left * canvas.width, top * canvas.height,
      (right - left) * canvas.width, (bottom - top) * canvas.height);
  }
}

function sentences(found) {
  const percent = (share) => `${(share * 100).toFixed(1)} %`;
  if (found.detections) return found.detections.map((one) => `${one.label} ${percent(one.score)}`);
  if (found.classes) return found.classes.map((one) => `${one.label} ${percent(one.score)}`);
  if (found.segments) return found.segments.map((one) => `${one.label}: ${percent(one.share)} of it`);
  return [`a vector of ${found.embedding.length} numbers`];
}

function pictures(model) {
  const canvas = el("canvas", { role: "img", "aria-label": "the picture, with its boxes" });
  const said = el("div", { role: "status" });
  canvas.hidden = true;
  const see = async (file) => {
    if (!file) return;
    said.replaceChildren("asking …");
    try {
      const rgb = await pixelsOf(file, canvas);
      canvas.hidden = false;
      const size = `width=${canvas.width}&height=${canvas.height}`;
      const where = `/page/see/${encodeURIComponent(model.name)}?${size}`;
      const found = await ask(where, { method: "POST", body: rgb });
      if (found.detections) drawBoxes(canvas, found.detections);
      const rows = sentences(found).map((text) => el("li", {}, text));
      said.replaceChildren(rows.length ? el("ul", {}, ...rows) : "nothing was found");
    } catch (error) {
      said.replaceChildren(el("p", { class: "fault" }, error.message));
    }
  };
  const file = el("input", { type: "file", accept: "image/*", onchange: () => see(file.files[0]) });
  const drop = el("label", {
    class: "drop",
    ondragover: (event) => { event.preventDefault(); drop.classList.add("over"); },
    ondragleave: () => drop.classList.remove("over"),
    ondrop: (event) => {
      event.preventDefault();
      drop.classList.remove("over");
      see(event.dataTransfer.files[0]);
    },
  }, `Drop a picture here, or choose one: ${model.name} says what it sees`, file);
  return el("section", {}, el("h3", {}, `Try it (task: ${model.task})`), drop, canvas, said);
}

// --- the page ---------------------------------------------------------------------------------

function card(model) {
  const state = model.ready
    ? el("span", { class: "ready" }, "ready") : el("span", { class: "away" }, model.reason);
  const made = el("article", { id: `model-${model.name}` },
    el("h2", {}, model.name, " ", el("span", { class: "soft" }, `version ${model.version}`)), state);
  if (model.inputs.length) {
    made.append(
      el("div", { class: "tensors" }, tensors("Inputs", model.inputs), tensors("Outputs", model.outputs)),
      ...(model.task ? [pictures(model)] : []),
      ...Object.keys(LANGUAGES).map((each) => line(each, model.lines[each], model.name)));
  }
  return made;
}

async function show() {
  const state = place("state");
  try {
    const { models } = await ask("/page/models");
    place("who").hidden = true;
    place("models").replaceChildren(...models.map(card));
    state.className = "";
    state.textContent = models.length === 1 ? "1 model" : `${models.length} models`;
  } catch (error) {
    place("who").hidden = error.code !== 401;
    state.className = "fault";
    state.textContent = error.message;
  }
}

place("who").addEventListener("submit", (event) => {
  event.preventDefault();
  key = place("key").value.trim();
  show();
});
show();
