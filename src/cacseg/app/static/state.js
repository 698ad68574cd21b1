// What the parts of the page share: the model, the result that is shown, and ways to make elements.
export const $ = (id) => document.getElementById(id);

// model: of /api/model. result: one prediction; image: its picture; layers: for each output three maps of bytes, LAYERS.
export const state = { model: null, result: null, image: null, layers: null, view: "classes", highlighted: null };

const LAYERS = ["classes", "confidence", "entropy"];

export function layer(output, kind) {
  const size = state.result.shown[0] * state.result.shown[1];
  const start = (LAYERS.length * state.result.outputs.indexOf(output) + LAYERS.indexOf(kind)) * size;
  return state.layers.subarray(start, start + size);
}

export const percent = (share) => (share > 0 && share < 0.0005 ? "<0.1 %" : `${(100 * share).toFixed(1)} %`);

export function make(tag, text = "", attributes = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

export function named(label) {
  if (label >= state.model.names.length) return make("span", "no data");
  const element = make("span");
  const swatch = make("span", "", { class: "swatch" });
  swatch.style.background = `rgb(${state.model.palette[label].join(" ")})`;
  element.title = state.model.names[label];
  element.append(swatch, state.model.names[label]);
  return element;
}
