// @ts-check
// What the page knows of the server, read again after every change; the parts of the page redraw when it changes.
import { api, Problem } from "./api.js";
import { tell } from "./dom.js";

/** @typedef {import("./api.js").Status} Status */
/** @typedef {import("./api.js").TaughtClass} TaughtClass */
/** @typedef {import("./api.js").Lesson} Lesson */
/** @typedef {import("./api.js").Picture} Picture */

export const state = {
  /** @type {Status | null} */ status: null,
  /** @type {TaughtClass[]} */ classes: [],
  /** @type {Lesson[]} */ lessons: [],
  /** @type {Map<string, Picture[]>} */ pictures: new Map(),
  connected: true,
  uploading: 0,
};

/** @type {(() => void)[]} */
const drawings = [];

/** Draw now and whenever the state changes. @param {() => void} draw */
export function follow(draw) {
  drawings.push(draw);
}

export function redraw() {
  for (const draw of drawings) draw();
}

/** Read everything again. Pictures are read only of classes whose number of them changed. */
export async function refresh() {
  const [status, classes, lessons] = await Promise.all([api.status(), api.classes(), api.lessons()]);
  const changed = classes.filter(({ id, images, pending, learned, removed_pending: removed }) => {
    const known = state.pictures.get(id);
    const waiting = known?.filter(picture => !picture.learned).length;
    return !known || known.length !== images || (learned && waiting !== pending) || removed > 0;
  });
  const lists = await Promise.all(changed.map(({ id }) => api.pictures(id).catch(() => [])));
  changed.forEach(({ id }, number) => state.pictures.set(id, lists[number]));
  Object.assign(state, { status, classes, lessons, connected: true });
  redraw();
}

let waiting = false;

/** The server does not answer: say so, and try until it does. */
function reconnect() {
  if (waiting) return;
  waiting = true;
  state.connected = false;
  redraw();
  const attempt = async () => {
    try {
      await refresh();
      waiting = false;
      tell("The server is back.");
      document.dispatchEvent(new Event("zofc-connected"));
    } catch (error) {
      if (!(error instanceof Problem) || error.status === 0) setTimeout(attempt, 1500);
      else { state.connected = true; redraw(); report(error); } // another token: this page is out, and says so once
    }
  };
  setTimeout(attempt, 1500);
}

/** Show an error with its remedy. @param {unknown} error */
export function report(error) {
  if (error instanceof Problem && error.status === 0) return reconnect();
  if (error instanceof Problem) return tell(error.message, { kind: "error", remedy: error.remedy });
  tell("Something went wrong in this page.", { kind: "error", remedy: `Reload it. (${error instanceof Error ? error.message : error})` });
}

/**
 * Do something that changes the server, then read the state again; errors are shown.
 * @template T
 * @param {() => Promise<T>} work
 * @returns {Promise<T | undefined>}
 */
export async function attempt(work) {
  try {
    const result = await work();
    await refresh();
    return result;
  } catch (error) {
    report(error);
    if (!(error instanceof Problem) || error.status !== 0) await refresh().catch(report);
    return undefined;
  }
}

/** Notice a server that stops while nobody does anything, and what other programs teach it. */
export function watch() {
  setInterval(() => {
    if (document.hidden || waiting) return;
    api.status().then(status => {
      const before = state.status;
      state.status = status;
      if (before && (before.classes !== status.classes || before.lesson?.number !== status.lesson?.number)) return refresh();
      return undefined;
    }).catch(report);
  }, 4000);
}
