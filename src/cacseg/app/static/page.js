// The page of `cacseg app`: sends images, shows what came back.
import { NAMES, paint, resetPicture, watchPicture } from "./picture.js";
import { $, make, named, percent, state } from "./state.js";

const FILES = 20; // of one drop
const HISTORY = 12;
const history = [];

// Requests: one after another, so that several files wait here rather than in the server.
let tasks = Promise.resolve();
let left = 0;

function enqueue(name, url, body) {
  left += 1;
  tasks = tasks.then(() => predict(name, url, body)).catch((error) => complain(error.message, name));
  tasks = tasks.then(() => {
    left -= 1;
    if (left === 0) say("");
  });
}

async function predict(name, url, body) {
  let done = false;
  const tell = async () => {
    const { waiting } = await (await fetch("/api/queue")).json().catch(() => ({ waiting: 0 }));
    const others = waiting > 1 ? `, ${waiting - 1} of others in the queue` : "";
    const more = left > 1 ? `, ${left - 1} more to go` : "";
    if (!done) say(`Predicting ${name}${more}${others}`, true);
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
    done = true;
    clearInterval(timer);
  }
}

function say(text, busy = false) {
  $("status").textContent = text;
  $("status").classList.toggle("busy", busy);
}

function complain(text, name = "") {
  $("problems").append(make("li", text.includes(name) ? text : `${name}: ${text}`));
}

async function upload(list) {
  const files = [...list]; // which empties with the input
  await ready;
  $("problems").replaceChildren();
  if (files.length > FILES) complain(`Choose at most ${FILES} images at a time; the first ${FILES} of ${files.length} are taken.`);
  for (const file of files.slice(0, FILES)) {
    if (file.size > state.model.upload_bytes) complain(`${file.name} has more than ${state.model.upload_bytes / 2 ** 20} MiB. Make it smaller.`);
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
  Object.assign(state, { result, image, layers: new Uint8Array(layers), highlighted: null });
  const [width, height] = result.shown;
  $("name").textContent = result.name;
  const smaller = width < result.size[0] ? `, predicted at ${width} × ${height}` : "";
  $("size").textContent = `${result.size[0]} × ${result.size[1]} pixels${smaller}`;
  const links = result.outputs.map((output) =>
    make("a", `Download ${result.outputs.length > 1 ? `${output} ` : ""}mask`, {
      href: `${base}/${output}.png`, download: `${result.name.replace(/\.[^.]*$/, "")}_${output}.png`, id: `download-${output}`,
    }));
  $("downloads").replaceChildren(...links);
  $("picture").setAttribute("aria-label", describe(result));
  $("result").hidden = false;
  listClasses();
  listMoved();
  listHistory();
  resetPicture();
}

function describe(result) {
  const shares = result.shares[result.outputs.at(-1)];
  const largest = shares.map((share, label) => [share, label]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([share]) => share > 0);
  return `${result.name}, segmented. ${largest.map(([share, label]) => `${state.model.names[label]} ${percent(share)}`).join(", ")}. Arrow keys move a pointer that reads the class.`;
}

function listClasses() {
  const { outputs, shares, changed } = state.result;
  const last = shares[outputs.at(-1)];
  const labels = state.model.names.map((_, label) => label).filter((label) => outputs.some((output) => shares[output][label] > 0));
  labels.sort((a, b) => last[b] - last[a]);
  document.documentElement.style.setProperty("--columns", outputs.length);
  $("heads").replaceChildren(make("span", "share of the pixels"), ...outputs.map((output) => make("span", outputs.length > 1 ? output : "")));
  $("legend").replaceChildren(...labels.map((label) => {
    const button = make("button", "", { class: "row", type: "button", "aria-pressed": "false", "data-label": label });
    button.append(named(label), ...outputs.map((output) => make("span", percent(shares[output][label]), { "data-output": output })));
    button.addEventListener("click", () => {
      state.highlighted = state.highlighted === label ? null : label;
      for (const one of $("legend").querySelectorAll("button")) one.setAttribute("aria-pressed", Number(one.dataset.label) === state.highlighted);
      paint();
    });
    const item = make("li");
    item.append(button);
    return item;
  }));
  const absent = state.model.names.length - labels.length;
  $("absent").textContent = absent ? `${absent} of ${state.model.names.length} classes are nowhere in the image.` : "";
  $("changed").textContent = changed === null ? "" : `Context differs from plain in ${percent(changed)} of the pixels.`;
}

function listMoved() {
  const { moved, outputs, shares } = state.result;
  $("moved").hidden = moved === null;
  if (moved === null) return;
  const here = (label) => outputs.some((output) => shares[output][label] > 0);  // rows of other classes say little
  const order = moved.map((value, label) => [value, label]).filter(([, label]) => here(label)).sort((a, b) => b[0] - a[0]).slice(0, 10);
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
    `/api/results/${result.key}/image.jpg`, result.name, () => open(result).catch((error) => complain(error.message, result.name)),
    result === state.result,
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

function watch() {
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

async function start() {
  state.model = await (await fetch("/api/model")).json();
  document.title = `${state.model.title} - cacseg`;
  $("title").textContent = state.model.title;
  $("facts").textContent = `${state.model.names.length} classes, ${state.model.outputs.length > 1 ? "context-aware" : "plain"} classifier, on ${state.model.device}`;
  $("limits").textContent = `JPEG, PNG, WebP, BMP, TIFF; up to ${state.model.upload_bytes / 2 ** 20} MiB and ${state.model.max_pixels / 1e6} megapixels`;
  const sides = ["input", ...state.model.outputs];
  for (const id of ["left", "right"]) $(id).replaceChildren(...sides.map((side) => make("option", NAMES[side], { value: side })));
  $("left").value = sides.at(-2);
  $("right").value = sides.at(-1);
  $("changes").hidden = state.model.outputs.length < 2;
  $("examples").hidden = state.model.examples.length === 0;
  $("example-list").replaceChildren(...state.model.examples.map((name, index) => picked(`/api/examples/${index}`, name, () => {
    $("problems").replaceChildren();
    enqueue(name, `/api/examples/${index}`, null);
  })));
}

watchPicture();
watch();
const ready = start().catch((error) => complain(`The page could not be started: ${error.message}`));
