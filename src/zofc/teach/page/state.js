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
  refused: false, // the server has another token: this page is over
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

/** @type {Map<string, string>} */
const galleries = new Map(); // of each class, the pictures that are known

/** Read everything again; pictures only of classes whose gallery is another one. */
export async function refresh() {
  const [status, classes, lessons] = await Promise.all([api.status(), api.classes(), api.lessons()]);
  const changed = classes.filter(({ id, gallery }) => galleries.get(id) !== gallery);
  const lists = await Promise.all(changed.map(({ id }) => api.pictures(id).catch(() => null)));
  changed.forEach(({ id, gallery }, number) => {
    const pictures = lists[number];
    state.pictures.set(id, pictures ?? []);
    if (pictures) galleries.set(id, gallery); else galleries.delete(id);
  });
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
      else report(error);
    }
  };
  setTimeout(attempt, 1500);
}

/** The token is not the server's: nothing works here any more, and the page says what to open. */
function end() {
  waiting = true; // nothing is asked again
  Object.assign(state, { connected: false, refused: true });
  redraw();
}

/** Show an error with its remedy. @param {unknown} error */
export function report(error) {
  if (state.refused) return undefined;
  if (error instanceof Problem && error.status === 401) return end();
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
      if (before && (before.revision !== status.revision || before.lesson?.number !== status.lesson?.number)) return refresh();
      return undefined;
    }).catch(report);
  }, 4000);
}
