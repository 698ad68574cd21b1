// The picture: two sides with a divider, the views, and the class under the pointer.
import { $, layer, make, named, state } from "./state.js";

const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // as #scale in page.css
export const NAMES = { input: "Input", plain: "Plain", context: "Context" };
let probe = [0, 0]; // the pixel that was read last

const pack = ([red, green, blue], alpha) => (alpha << 24 | blue << 16 | green << 8 | red) >>> 0;

function colours() {
  const table = new Uint32Array(256);
  if (state.view === "classes" || state.view === "changes") {
    state.model.palette.forEach((colour, label) => {
      table[label] = pack(colour, state.highlighted === null || state.highlighted === label ? 255 : 0);
    });
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
  context.drawImage(state.image, 0, 0);
  if (output === "input") return;
  const sheet = new ImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(sheet.data.buffer);
  const table = colours();
  const values = layer(output, state.view === "changes" ? "classes" : state.view);
  if (state.view === "changes") {
    const [plain, own] = [layer("plain", "classes"), layer("context", "classes")];
    for (let k = 0; k < pixels.length; k += 1) pixels[k] = plain[k] === own[k] ? 0xb8000000 : table[values[k]];
  } else {
    for (let k = 0; k < pixels.length; k += 1) pixels[k] = table[values[k]];
  }
  const over = new OffscreenCanvas(canvas.width, canvas.height);
  over.getContext("2d").putImageData(sheet, 0, 0);
  context.globalAlpha = state.view === "changes" ? 1 : $("opacity").value / 100;
  context.drawImage(over, 0, 0);
}

export function paint() {
  paintSide($("left-side"), $("left").value);
  paintSide($("right-side"), $("right").value);
  $("left-name").textContent = NAMES[$("left").value];
  $("right-name").textContent = NAMES[$("right").value];
  $("scale").hidden = state.view === "classes" || state.view === "changes";
  $("opacity").disabled = state.view === "changes";
  moveDivider();
}

export function resetPicture() {
  const [width, height] = state.result.shown;
  const picture = $("picture");
  picture.style.aspectRatio = `${width} / ${height}`;
  picture.style.maxWidth = $("split").style.maxWidth = `calc(74vh * ${width / height})`;
  picture.classList.toggle("coarse", picture.clientWidth > 2 * width);
  for (const canvas of [$("left-side"), $("right-side")]) Object.assign(canvas, { width, height });
  probe = [width >> 1, height >> 1];
  $("probe").hidden = $("tip").hidden = true;
  $("reading").replaceChildren();
  paint();
}

function moveDivider() {
  const place = Number($("split").value);
  $("left-side").style.clipPath = `inset(0 ${100 - place}% 0 0)`;
  $("divider").style.left = `${place}%`;
  $("left-name").hidden = place < 8;
  $("right-name").hidden = place > 92;
}

// Reading the class under the pointer
function read(x, y) {
  const [width, height] = state.result.shown;
  probe = [Math.min(width - 1, Math.max(0, x)), Math.min(height - 1, Math.max(0, y))];
  const place = probe[1] * width + probe[0];
  const parts = state.result.outputs.map((output) => {
    const label = layer(output, "classes")[place];
    const part = make("span", state.result.outputs.length > 1 ? `${output}: ` : "", { "data-output": output, "data-label": label });
    const [sure, spread] = ["confidence", "entropy"].map((kind) => (layer(output, kind)[place] / 255).toFixed(2));
    part.append(named(label), ` (confidence ${sure}, entropy ${spread})`);
    return part;
  });
  $("reading").replaceChildren(...parts);
  const [across, down] = [(probe[0] + 0.5) / width, (probe[1] + 0.5) / height];
  const under = 100 * across < Number($("split").value) ? $("left").value : $("right").value;
  const output = under === "input" ? state.result.outputs.at(-1) : under;
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
  const [width, height] = state.result.shown;
  $("probe").hidden = true;
  read(Math.floor((event.clientX - box.left) / box.width * width), Math.floor((event.clientY - box.top) / box.height * height));
  return 100 * (event.clientX - box.left) / box.width;
}

function slide(place) {
  $("split").value = place;
  moveDivider();
}

export function watchPicture() {
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
    const length = Math.max(1, Math.round(Math.max(...state.result.shown) / (event.shiftKey ? 10 : 60)));
    read(probe[0] + length * steps[0], probe[1] + length * steps[1]);
    $("probe").hidden = false;
  });
  picture.addEventListener("blur", () => { $("probe").hidden = $("tip").hidden = true; });
  $("split").addEventListener("input", moveDivider);
  for (const id of ["left", "right", "opacity"]) $(id).addEventListener("input", paint);
  $("views").addEventListener("change", (event) => {
    state.view = event.target.value;
    paint();
  });
}
