// @ts-check
// Making elements. Words are set as text alone, never as markup: names of classes come from anywhere.

/** @typedef {Node | string | null | undefined | false} Child */

/**
 * An element with properties, `data-`, `aria-` and other attributes, listeners (`onclick`) and children.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, any>} [properties]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && !name.includes("-")) Object.assign(element, { [name]: value });
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter(child => child !== null && child !== undefined && child !== false).map(child => /** @type {Node | string} */ (child)));
  return element;
}

/**
 * The element with an id; the page is broken without it.
 * @param {string} id
 * @returns {any}
 */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return element;
}

/**
 * Text of an element, changed only if it differs, so that screen readers do not repeat it.
 * @param {Element} element
 * @param {string} text
 */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * @param {number} number
 * @param {string} one
 * @param {string} [many]
 */
export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

/** @param {number | null | undefined} value */
export const percent = value => (value === null || value === undefined ? "–" : `${Math.round(value)} %`);

const FEW = 20; // pictures, of which one is five points of a percentage or more

/**
 * How many pictures were right: in numbers where they are few, for one of them then decides.
 * @param {number | null | undefined} right
 * @param {number | null | undefined} tested
 * @param {number | null | undefined} accuracy percent; all that lessons of earlier versions tell
 */
export function score(right, tested, accuracy) {
  if (right === null || right === undefined || !tested) return percent(accuracy);
  return tested < FEW ? `${right} of ${tested}` : percent(100 * right / tested);
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 60) return `${Math.max(1, Math.round(seconds))} s`;
  return seconds < 3600 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** @param {string[]} names  "a", "a and b", "a, b and 3 more" */
export function list(names) {
  if (names.length > 3) return `${names.slice(0, 2).join(", ")} and ${names.length - 2} more`;
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

// -- messages ------------------------------------------------------------------------------------------------

/**
 * Show a message in the live region until it is dismissed; `details` are listed below it. Notes go by themselves, but
 * those that `stay` until the function that is returned is called.
 * @param {string} text
 * @param {{kind?: "error" | "note", remedy?: string, details?: string[], stay?: boolean}} [options]
 * @returns {() => void}
 */
export function tell(text, { kind = "note", remedy = "", details = [], stay = false } = {}) {
  const close = () => message.remove();
  const message = make("div", { class: `message ${kind}` },
    make("div", {},
      make("p", {}, make("strong", {}, text), remedy && ` ${remedy}`),
      details.length > 0 && make("details", {}, make("summary", {}, `Show ${count(details.length, "file")}`),
        make("ul", {}, ...details.slice(0, 200).map(line => make("li", {}, line))))),
    make("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: close }, "×"));
  byId("messages").prepend(message);
  if (stay) message.dataset.stay = "";
  for (const old of [...byId("messages").querySelectorAll(".message:not([data-stay])")].slice(4)) old.remove();
  if (kind === "note" && !details.length && !stay) setTimeout(close, 5000);
  return close;
}

/**
 * Ask before something that cannot be taken back easily.
 * @param {{title: string, text: string, action: string, option?: string}} question
 * @returns {Promise<{yes: boolean, option: boolean}>}
 */
export function confirm({ title, text, action, option }) {
  return new Promise(done => {
    const box = make("input", { type: "checkbox" });
    const dialog = make("dialog", { class: "small", "aria-labelledby": "confirm-title" },
      make("form", { method: "dialog" },
        make("h2", { id: "confirm-title" }, title), make("p", {}, text),
        option && make("label", { class: "check" }, box, option),
        make("div", { class: "row end" },
          make("button", { value: "no", autofocus: true }, "Cancel"),
          make("button", { value: "yes", class: "danger" }, action))));
    dialog.addEventListener("close", () => { dialog.remove(); done({ yes: dialog.returnValue === "yes", option: box.checked }); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
