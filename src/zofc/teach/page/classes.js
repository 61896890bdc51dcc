// @ts-check
// The cards of classes: their pictures, and every way to add more.
import { api, pictureAddress, Problem } from "./api.js";
import { openCamera, takePicture } from "./camera.js";
import { byId, count, make, say, score } from "./dom.js";
import { chosen, groups, upload } from "./files.js";
import { openGallery } from "./gallery.js";
import { attempt, follow, report, state } from "./state.js";

/** @typedef {import("./api.js").TaughtClass} TaughtClass */

const SHOWN = 10; // thumbnails on a card
const EVERY = 200; // milliseconds between pictures while the button is held

/** @type {Map<string, {element: HTMLLIElement, update: (one: TaughtClass) => void}>} */
const cards = new Map();

/** What a card says below its name. @param {TaughtClass} one */
function words({ images, pending, removed_pending: removed, learned, accuracy, right, tested }) {
  const parts = [count(images, "picture")];
  if (!learned) parts.push("not taught yet");
  else {
    if (pending) parts.push(`${pending} new`);
    if (removed) parts.push(`${removed} to unlearn`);
    if (accuracy !== null) parts.push(`${score(right, tested, accuracy)} right`);
  }
  return parts.join(" · ");
}

/** @param {string} id */
function newCard(id) {
  const name = make("h3", {});
  const about = make("p", { class: "soft" });
  const strip = make("div", { class: "strip" });
  const input = make("input", { type: "file", id: `files-${id}`, class: "file", accept: "image/*", multiple: true });
  const pick = make("label", { class: "button", htmlFor: input.id }, "Add pictures");
  const camera = make("button", { type: "button", "aria-pressed": "false" }, "Camera");
  const all = make("button", { type: "button" }, "See all");
  const view = make("div", { class: "camera", hidden: true });
  const element = make("li", { class: "card", "data-drop": "class", "data-id": id },
    make("div", { class: "head" }, name, about), strip, view, make("div", { class: "row" }, pick, input, camera, all));
  input.addEventListener("change", () => {
    if (input.files?.length) upload([{ id, files: chosen(input.files).map(({ file }) => file) }]);
    input.value = "";
  });
  camera.addEventListener("click", () => cardCamera(id, view, camera).catch(report));
  all.addEventListener("click", () => openGallery(id));

  /** @param {TaughtClass} one */
  const update = one => {
    say(name, one.name);
    say(about, words(one));
    element.classList.toggle("taught", one.learned && !one.pending && !one.removed_pending);
    pick.setAttribute("aria-label", `Add pictures of ${one.name}`);
    input.setAttribute("aria-label", `Add pictures of ${one.name}`);
    camera.setAttribute("aria-label", `Camera for ${one.name}`);
    all.setAttribute("aria-label", `See all pictures of ${one.name}, rename or forget it`);
    const pictures = (state.pictures.get(id) ?? []).slice(-SHOWN).reverse();
    const wanted = pictures.map(picture => picture.id).join();
    if (strip.dataset.shown === wanted) return;
    strip.dataset.shown = wanted;
    strip.replaceChildren(...pictures.map(picture => make("img", { src: pictureAddress(picture.id, 160), alt: "", loading: "lazy" })),
      pictures.length ? "" : make("span", { class: "soft" }, "Drop pictures here"));
  };
  return { element, update };
}

/**
 * Take pictures while a button is held; a key or a tap takes one.
 * @param {string} id
 * @param {HTMLElement} view
 * @param {HTMLButtonElement} button
 */
async function cardCamera(id, view, button) {
  if (button.ariaPressed === "true") return /** @type {any} */ (view).close();
  /** @type {File[]} */
  let taken = [];
  let timer = 0;
  const { video, close } = await openCamera(view, () => {
    clearInterval(timer);
    button.ariaPressed = "false";
    view.hidden = true;
    view.replaceChildren();
  });
  const number = make("span", { class: "soft", role: "status" });
  const flush = () => {
    if (taken.length) upload([{ id, files: taken }]);
    taken = [];
  };
  const shoot = async () => {
    const file = await takePicture(video);
    if (!file) return;
    taken.push(file);
    say(number, count(Number(number.dataset.taken = String(Number(number.dataset.taken ?? 0) + 1)), "picture") + " taken");
    if (!timer || taken.length >= 8) flush();
  };
  const hold = make("button", { type: "button", class: "accent", onclick: (/** @type {MouseEvent} */ event) => { if (event.detail === 0) shoot(); } }, "Hold to take pictures");
  hold.addEventListener("pointerdown", event => {
    hold.setPointerCapture(event.pointerId);
    clearInterval(timer);
    timer = window.setInterval(shoot, EVERY);
    shoot();
  });
  const end = () => { clearInterval(timer); timer = 0; setTimeout(flush, EVERY); };
  hold.addEventListener("pointerup", end);
  hold.addEventListener("pointercancel", end);
  hold.addEventListener("contextmenu", event => event.preventDefault());
  view.append(make("div", { class: "row" }, hold, number));
  Object.assign(view, { close, hidden: false });
  button.ariaPressed = "true";
}

function draw() {
  const list = byId("cards");
  const ids = new Set(state.classes.map(({ id }) => id));
  for (const [id, { element }] of cards) {
    if (!ids.has(id)) { element.remove(); cards.delete(id); }
  }
  for (const [place, one] of state.classes.entries()) {
    const card = cards.get(one.id) ?? newCard(one.id);
    cards.set(one.id, card);
    if (list.children[place] !== card.element) list.insertBefore(card.element, list.children[place]); // a class that came back by undo
    card.update(one);
  }
}

/**
 * Pictures for the class of an element, for new classes by their folders, or for the one whose name is being typed.
 * @param {string | undefined} id
 * @param {import("./files.js").Found[]} found
 */
export function receive(id, found) {
  if (!found.length) return;
  if (id) return void upload([{ id, files: found.map(({ file }) => file) }]);
  const field = byId("new-name");
  const jobs = groups(found).map(({ name, files }) => ({ name: name ?? field.value.trim(), files }));
  if (jobs.some(({ name }) => !name)) {
    field.focus();
    report(new Problem("These pictures have no folder to name their class.", "Type the name of the class, then drop them again; or drop them on a class.", -1));
    return;
  }
  field.value = "";
  upload(jobs);
}

export function startClasses() {
  follow(draw);
  byId("new-form").addEventListener("submit", async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const field = byId("new-name");
    const name = field.value.trim();
    if (!name) return;
    const made = await attempt(() => api.addClass(name));
    if (!made) return;
    field.value = "";
    cards.get(made.id)?.element.scrollIntoView({ block: "nearest" });
  });
  const folders = byId("new-folders");
  folders.addEventListener("change", () => { receive(undefined, chosen(folders.files)); folders.value = ""; });
}
