// The page of `cacseg app`. A result has one image and, for each classifier, three layers of bytes: class, confidence, entropy.
const $ = (id) => document.getElementById(id);
const LAYERS = { classes: 0, confidence: 1, entropy: 2 };
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // as #scale in page.css
const FILES = 20; // of one drop
const HISTORY = 12;
const NAMES = { input: "Input", plain: "Plain", context: "Context" };
let model = null;
let shown = null; // { result, layers, image }
let highlighted = null; // a class
let view = "classes";
const history = [];

const percent = (share) => (share > 0 && share < 0.0005 ? "<0.1 %" : `${(100 * share).toFixed(1)} %`);

function make(tag, text = "", attributes = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function named(label) {
  const element = make("span");
  const swatch = make("span", "", { class: "swatch" });
  swatch.style.background = `rgb(${model.palette[label].join(" ")})`;
  element.title = model.names[label];
  element.append(swatch, model.names[label]);
  return element;
}

// Requests: one after another, so that several files wait here rather than in the server.
let tasks = Promise.resolve();
let left = 0;

function enqueue(name, url, body) {
  left += 1;
  tasks = tasks.then(() => predict(name, url, body)).catch((error) => complain(`${name}: ${error.message}`));
  tasks = tasks.then(() => {
    left -= 1;
    if (left === 0) say("");
  });
}

async function predict(name, url, body) {
  const tell = async () => {
    const { waiting } = await (await fetch("/api/queue")).json().catch(() => ({ waiting: 0 }));
    const others = waiting > 1 ? `, ${waiting - 1} of others in the queue` : "";
    const more = left > 1 ? `, ${left - 1} more to go` : "";
    say(`Predicting ${name}${more}${others}`, true);
  };
  say(`Predicting ${name}`, true);
  const timer = setInterval(() => tell().catch(() => {}), 1000);
  try {
    const answer = await fetch(url, { method: "POST", body, headers: { "Content-Type": "application/octet-stream" } })
      .catch(() => { throw new Error("the server cannot be reached. Is it still running?"); });
    const result = await answer.json().catch(() => ({ error: `the server answered ${answer.status}.` }));
    if (!answer.ok) throw new Error(result.error);
    history.unshift(result);
    history.length = Math.min(history.length, HISTORY);
    await open(result);
  } finally {
    clearInterval(timer);
  }
}

function say(text, busy = false) {
  $("status").textContent = text;
  $("status").classList.toggle("busy", busy);
}

function complain(text) {
  $("problems").append(make("li", text));
}

function upload(files) {
  $("problems").replaceChildren();
  if (files.length > FILES) complain(`Choose at most ${FILES} images at a time; the first ${FILES} of ${files.length} are taken.`);
  for (const file of [...files].slice(0, FILES)) {
    if (file.size > model.upload_bytes) complain(`${file.name} has more than ${model.upload_bytes / 2 ** 20} MiB. Make it smaller.`);
    else enqueue(file.name, `/api/predict?name=${encodeURIComponent(file.name)}`, file);
  }
}

// One result
async function open(result) {
  const base = `/api/results/${result.key}`;
  const [layers, image] = await Promise.all([
    fetch(`${base}/layers.bin`).then((answer) => {
      if (!answer.ok) throw new Error("this prediction is no longer kept. Predict the image again.");
      return answer.arrayBuffer();
    }),
    fetch(`${base}/image.jpg`).then((answer) => answer.blob()).then((blob) => createImageBitmap(blob)),
  ]);
  shown = { result, image, layers: new Uint8Array(layers) };
  highlighted = null;
  const [width, height] = result.shown;
  const picture = $("picture");
  picture.style.aspectRatio = `${width} / ${height}`;
  picture.style.maxWidth = `calc(74vh * ${width / height})`;
  picture.setAttribute("aria-label", describe(result));
  for (const canvas of [$("left-side"), $("right-side")]) Object.assign(canvas, { width, height });
  $("name").textContent = result.name;
  const smaller = width < result.size[0] ? `, predicted at ${width} × ${height}` : "";
  $("size").textContent = `${result.size[0]} × ${result.size[1]} pixels${smaller}`;
  const links = result.outputs.map((output) =>
    make("a", `Download ${result.outputs.length > 1 ? `${output} ` : ""}mask`, {
      href: `${base}/${output}.png`, download: `${result.name.replace(/\.[^.]*$/, "")}_${output}.png`, id: `download-${output}`,
    }));
  $("downloads").replaceChildren(...links);
  $("result").hidden = false;
  picture.classList.toggle("coarse", picture.clientWidth > 2 * width);
  $("probe").hidden = $("tip").hidden = true;
  $("reading").replaceChildren();
  probe = [width >> 1, height >> 1];
  listClasses();
  listMoved();
  listHistory();
  paint();
}

function describe(result) {
  const shares = result.shares[result.outputs.at(-1)];
  const largest = shares.map((share, label) => [share, label]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([share]) => share > 0);
  return `${result.name}, segmented. ${largest.map(([share, label]) => `${model.names[label]} ${percent(share)}`).join(", ")}. Arrow keys move a pointer that reads the class.`;
}

function listClasses() {
  const { outputs, shares, changed } = shown.result;
  const last = shares[outputs.at(-1)];
  const labels = model.names.map((_, label) => label).filter((label) => outputs.some((output) => shares[output][label] > 0));
  labels.sort((a, b) => last[b] - last[a]);
  document.documentElement.style.setProperty("--columns", outputs.length);
  $("heads").replaceChildren(make("span", "share of the pixels"), ...outputs.map((output) => make("span", outputs.length > 1 ? output : "")));
  $("legend").replaceChildren(...labels.map((label) => {
    const button = make("button", "", { class: "row", type: "button", "aria-pressed": "false", "data-label": label });
    button.append(named(label), ...outputs.map((output) => make("span", percent(shares[output][label]), { "data-output": output })));
    button.addEventListener("click", () => {
      highlighted = highlighted === label ? null : label;
      for (const one of $("legend").querySelectorAll("button")) one.setAttribute("aria-pressed", Number(one.dataset.label) === highlighted);
      paint();
    });
    const item = make("li");
    item.append(button);
    return item;
  }));
  const absent = model.names.length - labels.length;
  $("absent").textContent = absent ? `${absent} of ${model.names.length} classes are nowhere in the image.` : "";
  $("changed").textContent = changed === null ? "" : `Context differs from plain in ${percent(changed)} of the pixels.`;
}

function listMoved() {
  const { moved } = shown.result;
  $("moved").hidden = moved === null;
  if (moved === null) return;
  const order = moved.map((value, label) => [value, label]).sort((a, b) => b[0] - a[0]).slice(0, 10);
  $("moved-list").replaceChildren(...order.map(([value, label]) => {
    const item = make("li", "", { "data-label": label });
    const bar = make("i");
    bar.style.width = `${100 * Math.max(0, value) / Math.max(order[0][0], 1e-9)}%`;
    const track = make("span");
    track.append(bar);
    item.append(named(label), track, make("b", value >= 0.001 ? value.toFixed(3) : value.toExponential(0)));
    return item;
  }));
}

function listHistory() {
  $("history").hidden = history.length < 2;
  $("history-list").replaceChildren(...history.map((result) => picked(
    `/api/results/${result.key}/image.jpg`, result.name, () => open(result).catch((error) => complain(`${result.name}: ${error.message}`)),
    result === shown.result,
  )));
}

function picked(source, name, act, current = false) {
  const item = make("li");
  const button = make("button", "", { type: "button", title: name, "aria-current": current });
  button.append(make("img", "", { src: source, alt: name, loading: "lazy" }));
  button.addEventListener("click", act);
  item.append(button);
  return item;
}

// Drawing
function layer(output, kind) {
  const size = shown.result.shown[0] * shown.result.shown[1];
  const start = (3 * shown.result.outputs.indexOf(output) + LAYERS[kind]) * size;
  return shown.layers.subarray(start, start + size);
}

const pack = ([red, green, blue], alpha) => (alpha << 24 | blue << 16 | green << 8 | red) >>> 0;

function colours() {
  const table = new Uint32Array(256);
  if (view === "classes" || view === "changes") {
    model.palette.forEach((colour, label) => { table[label] = pack(colour, highlighted === null || highlighted === label ? 255 : 0); });
    return table;
  }
  for (let value = 0; value < 256; value += 1) {
    const place = value / 255 * (STOPS.length - 1);
    const stop = Math.min(Math.floor(place), STOPS.length - 2);
    table[value] = pack(STOPS[stop].map((one, k) => Math.round(one + (place - stop) * (STOPS[stop + 1][k] - one))), 255);
  }
  return table;
}

function paintSide(canvas, output) {
  const context = canvas.getContext("2d");
  context.globalAlpha = 1;
  context.drawImage(shown.image, 0, 0);
  if (output === "input") return;
  const sheet = new ImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(sheet.data.buffer);
  const table = colours();
  const values = layer(output, view === "changes" ? "classes" : view);
  if (view === "changes") {
    const [plain, own] = [layer("plain", "classes"), layer("context", "classes")];
    for (let k = 0; k < pixels.length; k += 1) pixels[k] = plain[k] === own[k] ? 0xb8000000 : table[values[k]];
  } else {
    for (let k = 0; k < pixels.length; k += 1) pixels[k] = table[values[k]];
  }
  const over = new OffscreenCanvas(canvas.width, canvas.height);
  over.getContext("2d").putImageData(sheet, 0, 0);
  context.globalAlpha = view === "changes" ? 1 : $("opacity").value / 100;
  context.drawImage(over, 0, 0);
}

function paint() {
  paintSide($("left-side"), $("left").value);
  paintSide($("right-side"), $("right").value);
  $("left-name").textContent = NAMES[$("left").value];
  $("right-name").textContent = NAMES[$("right").value];
  $("scale").hidden = view === "classes" || view === "changes";
  $("opacity").disabled = view === "changes";
  moveDivider();
}

function moveDivider() {
  const place = Number($("split").value);
  $("left-side").style.clipPath = `inset(0 ${100 - place}% 0 0)`;
  $("divider").style.left = `${place}%`;
  $("left-name").hidden = place < 8;
  $("right-name").hidden = place > 92;
}

// Reading the class under the pointer
let probe = [0, 0];

function read(x, y) {
  const [width, height] = shown.result.shown;
  probe = [Math.min(width - 1, Math.max(0, x)), Math.min(height - 1, Math.max(0, y))];
  const place = probe[1] * width + probe[0];
  const parts = shown.result.outputs.map((output) => {
    const label = layer(output, "classes")[place];
    const part = make("span", shown.result.outputs.length > 1 ? `${output}: ` : "", { "data-output": output, "data-label": label });
    const [sure, spread] = ["confidence", "entropy"].map((kind) => (layer(output, kind)[place] / 255).toFixed(2));
    part.append(named(label), ` (confidence ${sure}, entropy ${spread})`);
    return part;
  });
  $("reading").replaceChildren(...parts);
  const [across, down] = [(probe[0] + 0.5) / width, (probe[1] + 0.5) / height];
  const under = 100 * across < Number($("split").value) ? $("left").value : $("right").value;
  const output = under === "input" ? shown.result.outputs.at(-1) : under;
  const tip = $("tip");
  tip.replaceChildren(named(layer(output, "classes")[place]));
  tip.hidden = false;
  tip.style.left = across < 0.6 ? `calc(${100 * across}% + 16px)` : "auto";
  tip.style.right = across < 0.6 ? "auto" : `calc(${100 - 100 * across}% + 16px)`;
  tip.style.top = `clamp(0px, calc(${100 * down}% - 14px), calc(100% - 30px))`;
  $("probe").style.left = `${100 * across}%`;
  $("probe").style.top = `${100 * down}%`;
}

function readAt(event) {
  const box = $("picture").getBoundingClientRect();
  const [width, height] = shown.result.shown;
  $("probe").hidden = true;
  read(Math.floor((event.clientX - box.left) / box.width * width), Math.floor((event.clientY - box.top) / box.height * height));
  return 100 * (event.clientX - box.left) / box.width;
}

function watch() {
  const picture = $("picture");
  picture.addEventListener("pointermove", (event) => {
    const place = readAt(event);
    if (picture.hasPointerCapture(event.pointerId)) slide(place);
  });
  picture.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    picture.setPointerCapture(event.pointerId);
    slide(readAt(event));
  });
  picture.addEventListener("pointerleave", () => { $("tip").hidden = true; });
  picture.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (steps === undefined) return;
    event.preventDefault();
    const length = Math.max(1, Math.round(Math.max(...shown.result.shown) / (event.shiftKey ? 10 : 60)));
    read(probe[0] + length * steps[0], probe[1] + length * steps[1]);
    $("probe").hidden = false;
  });
  picture.addEventListener("blur", () => { $("probe").hidden = $("tip").hidden = true; });
  $("split").addEventListener("input", moveDivider);
  for (const id of ["left", "right", "opacity"]) $(id).addEventListener("input", paint);
  $("views").addEventListener("change", (event) => {
    view = event.target.value;
    paint();
  });
  $("file").addEventListener("change", (event) => {
    upload(event.target.files);
    event.target.value = "";
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    $("drop").classList.add("over");
  });
  document.addEventListener("dragleave", (event) => { if (event.relatedTarget === null) $("drop").classList.remove("over"); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").classList.remove("over");
    upload(event.dataTransfer.files);
  });
  window.addEventListener("paste", (event) => { if (event.clipboardData.files.length) upload(event.clipboardData.files); });
}

function slide(place) {
  $("split").value = place;
  moveDivider();
}

async function start() {
  model = await (await fetch("/api/model")).json();
  document.title = `${model.title} - cacseg`;
  $("title").textContent = model.title;
  $("facts").textContent = `${model.names.length} classes, ${model.outputs.length > 1 ? "context-aware" : "plain"} classifier, on ${model.device}`;
  $("limits").textContent = `JPEG, PNG, WebP, BMP, TIFF; up to ${model.upload_bytes / 2 ** 20} MiB and ${model.max_pixels / 1e6} megapixels`;
  const sides = ["input", ...model.outputs];
  for (const id of ["left", "right"]) $(id).replaceChildren(...sides.map((side) => make("option", NAMES[side], { value: side })));
  $("left").value = sides.at(-2);
  $("right").value = sides.at(-1);
  $("changes").hidden = model.outputs.length < 2;
  $("examples").hidden = model.examples.length === 0;
  $("example-list").replaceChildren(...model.examples.map((name, index) => picked(`/api/examples/${index}`, name, () => {
    $("problems").replaceChildren();
    enqueue(name, `/api/examples/${index}`, null);
  })));
  watch();
}

start().catch((error) => complain(`The page could not be started: ${error.message}`));
