// @ts-check
// All pictures of a class, in a dialog: remove some, rename the class, forget it.
import { api, pictureAddress } from "./api.js";
import { byId, confirm, count, make, say, tell } from "./dom.js";
import { attempt, follow, state } from "./state.js";

/** @type {{id: string, draw: () => void} | null} */
let shown = null;

/** @param {string} id */
export function openGallery(id) {
  const name = make("input", { id: "gallery-name", maxLength: 100, autocomplete: "off", required: true });
  const about = make("p", { class: "soft" });
  const grid = make("ul", { class: "grid" });
  const one = () => state.classes.find(known => known.id === id);
  const dialog = make("dialog", { class: "gallery", "aria-labelledby": "gallery-title" },
    make("div", { class: "row spread" }, make("h2", { id: "gallery-title" }, one()?.name ?? ""),
      make("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => dialog.close() }, "×")),
    make("form", { class: "row", onsubmit: async (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      const wanted = name.value.trim();
      if (wanted && wanted !== one()?.name) await attempt(() => api.rename(id, wanted));
    } }, make("label", { htmlFor: name.id }, "Name"), name, make("button", {}, "Rename"),
    make("button", { type: "button", class: "danger", onclick: () => forget(id) }, "Forget this class")),
    about, grid);
  let written = one()?.name ?? "";
  name.value = written;
  const draw = () => {
    const known = one();
    if (!known) return dialog.close();
    if (known.name !== written) name.value = written = known.name;
    say(byId("gallery-title"), known.name);
    say(about, `${count(known.images, "picture")}, ${known.held_back} of them held back to test what it remembers.`);
    drawGrid(grid, id, known.name);
    return undefined;
  };
  dialog.addEventListener("close", () => { shown = null; dialog.remove(); });
  dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });
  document.body.append(dialog);
  shown = { id, draw };
  draw();
  dialog.showModal();
}

/**
 * @param {HTMLElement} grid
 * @param {string} id
 * @param {string} name
 */
function drawGrid(grid, id, name) {
  const pictures = state.pictures.get(id) ?? [];
  const present = new Map([.../** @type {NodeListOf<HTMLElement>} */ (grid.querySelectorAll("li"))].map(item => [item.dataset.id, item]));
  const wanted = new Set(pictures.map(picture => picture.id));
  for (const [key, item] of present) if (!wanted.has(key ?? "")) item.remove();
  pictures.forEach(({ id: picture, held_back: held, learned }, number) => {
    const mark = held ? "held back" : learned ? "" : "new";
    const known = present.get(picture);
    if (known) return say(/** @type {Element} */ (known.querySelector(".mark")), mark);
    grid.append(make("li", { "data-id": picture },
      make("img", { src: pictureAddress(picture, 160), alt: `Picture ${number + 1} of ${name}`, loading: "lazy" }),
      make("span", { class: "mark" }, mark),
      make("button", { type: "button", class: "quiet", "aria-label": `Remove picture ${number + 1}`, onclick: () => remove(picture) }, "×")));
    return undefined;
  });
}

/** @param {string} picture */
async function remove(picture) {
  const buttons = [...document.querySelectorAll(".gallery .grid button")];
  const place = buttons.findIndex(button => button === document.activeElement);
  await attempt(() => api.removePicture(picture));
  const left = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".gallery .grid button")]);
  left[Math.min(place, left.length - 1)]?.focus(); // the keyboard stays where it was
}

/** @param {string} id */
async function forget(id) {
  const one = state.classes.find(known => known.id === id);
  if (!one) return;
  const { yes, option } = await confirm({
    title: `Forget “${one.name}”?`,
    text: one.learned ? "It will not be answered any more. The last change can be undone." : `It was never taught. Its ${count(one.images, "picture")} will be deleted.`,
    action: "Forget",
    option: one.learned ? "For good: delete its pictures now; no earlier lesson can be undone any more" : undefined,
  });
  if (!yes) return;
  const gone = await attempt(async () => { await api.forget(id, option); return true; });
  if (gone) tell(`“${one.name}” is forgotten.`);
}

export function startGallery() {
  follow(() => shown?.draw());
}
