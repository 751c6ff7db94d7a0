// The page: what is asked (mode, settings, key), and the panes that show the answers.

import { fetchJson } from "./api.mjs";
import { TokenCard } from "./card.mjs";
import { COLOURINGS } from "./measure.mjs";
import { Pane } from "./pane.mjs";
import { storage } from "./storage.mjs";
import { startTheme } from "./theme.mjs";

const KEY = "triptych-lens-key";
const kept = storage("sessionStorage");
const find = (selector) => document.querySelector(selector);

const form = find("#controls");
const card = new TokenCard(find("#card"), find("#card-summary"));
const panes = ["A", "B"].map((name) => addPane(name));
let model = null;

function addPane(name) {
  const root = find("#pane").content.firstElementChild.cloneNode(true);
  find("main").append(root);
  const say = (text) => {
    find("#spoken").textContent = `${isCompared() ? `${name}: ` : ""}${text}`;
  };
  return new Pane(root, { name, card, say });
}

function isCompared() {
  return form.elements.compare.checked;
}

function shownPanes() {
  return isCompared() ? panes : panes.slice(0, 1);
}

function showMode() {
  const { mode } = form.elements;
  document.body.dataset.mode = mode.value;
  for (const pane of panes) pane.mode = mode.value;
  find("#run").textContent = mode.value === "score" ? "Score" : "Run";
}

function showCompared() {
  const [first, second] = panes;
  if (isCompared() && second.root.hidden) second.prompt = first.prompt;
  second.root.hidden = !isCompared();
  document.body.classList.toggle("compared", isCompared());
}

function showColouring() {
  const colouring = form.elements.colouring.value;
  for (const pane of panes) pane.colourBy(colouring);
  find("#legend").replaceChildren(
    ...COLOURINGS[colouring].labels.map((text, level) => {
      const item = document.createElement("li");
      item.className = `l${level}`;
      item.textContent = text;
      return item;
    }),
  );
}

/**
 * What is typed, by the name of its control. The form is not validated by the browser, which would
 * refuse what lies between two steps of a control, and say so at none that is hidden.
 */
function typed() {
  const unread = [...form.elements].filter((each) => each.validity?.badInput);
  return { ...Object.fromEntries(new FormData(form)), ...Object.fromEntries(unread.map((each) => [each.name, "?"])) };
}

async function run() {
  const settings = typed();
  const call = { model, key: form.elements.key.value };
  setRunning(true);
  find("#spoken").textContent = "Running.";
  await Promise.all(shownPanes().map((pane) => pane.run(settings, call)));
  setRunning(false);
}

/** Run and Stop are in one place; a keyboard's focus goes with them. */
function setRunning(isRunning) {
  const hadFocus = [find("#run"), find("#stop")].includes(document.activeElement);
  find("#run").hidden = isRunning;
  find("#stop").hidden = !isRunning;
  if (hadFocus) find(isRunning ? "#stop" : "#run").focus({ preventScroll: true });
}

async function showModel() {
  const place = find("#model");
  try {
    const { data } = await fetchJson("v1/models", { key: form.elements.key.value });
    model = data[0].id;
    const length = data[0].max_model_len;
    place.textContent = length ? `${model} · ${length.toLocaleString("en")} tokens` : model;
  } catch (error) {
    model = null;
    place.textContent = error.status === 401 ? "an API key is needed" : "no model";
    if (error.status === 401) find("#more").open = true;
  }
}

form.elements.key.value = kept.getItem(KEY) ?? "";
form.elements.key.addEventListener("change", ({ target }) => {
  kept.setItem(KEY, target.value);
  showModel();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!find("#run").hidden) run();
});
find("#stop").addEventListener("click", () => panes.forEach((pane) => pane.stop()));
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
for (const input of form.elements.mode) input.addEventListener("change", showMode);
form.elements.compare.addEventListener("change", showCompared);
form.elements.colouring.addEventListener("change", showColouring);
startTheme(find("#theme"), () => panes.forEach((pane) => pane.redraw()));
showMode();
showCompared();
showColouring();
await showModel();
document.body.dataset.ready = "";
