// @ts-check
// The Teach button, the lesson that runs, and its end.
import { address, api, Problem } from "./api.js";
import { byId, count, duration, list, percent, say, score, tell } from "./dom.js";
import { attempt, follow, refresh, report, state } from "./state.js";

/** @typedef {import("./api.js").Progress} Progress */

/** @type {Record<string, string>} */
const PHASES = {
  before: "Testing what it knows so far",
  features: "Looking at the pictures",
  adapter: "Adapting to the pictures",
  readout: "Learning to tell the classes apart",
  testing: "Testing on the pictures held back",
};
const FEW = 8; // pictures of a class below which more are advised

/** What a lesson would learn, and why it cannot begin. */
function plan() {
  const fresh = state.classes.filter(one => !one.learned && one.images > 0);
  const more = state.classes.filter(one => one.learned && (one.pending > 0 || one.removed_pending > 0));
  const known = state.classes.filter(one => one.learned).length;
  const pictures = [...fresh, ...more].reduce((sum, one) => sum + one.pending, 0);
  const parts = [];
  if (fresh.length) parts.push(count(fresh.length, "new class", "new classes"));
  if (more.length) parts.push(`${count(more.length, fresh.length ? "other" : "class", fresh.length ? "others" : "classes")} again`);
  if (pictures) parts.push(count(pictures, "picture"));
  let why = "";
  if (state.uploading) why = "Pictures are still being added.";
  else if (!state.classes.length) why = "Add two classes first: type a name, or drop a folder.";
  else if (known + fresh.length < 2) {
    const empty = state.classes.filter(one => !one.images).map(one => one.name);
    why = empty.length ? `Add pictures to ${list(empty)}.` : "Add a second class, so that there is something to tell apart.";
  } else if (!parts.length) why = "Everything here is taught. Add pictures or a class.";
  const few = fresh.filter(one => one.images < FEW).map(one => one.name);
  const hint = few.length ? `${list(few)}: ten or more pictures of each are better.` : "";
  return { text: parts.length ? `Teach ${parts.join(", ")}` : "Teach", why, hint };
}

function draw() {
  const running = Boolean(state.status?.lesson);
  const { text, why, hint } = plan();
  const button = byId("teach-button");
  say(button, running ? "Teaching…" : text);
  button.disabled = running || Boolean(why) || !state.connected;
  const before = state.classes.some(one => one.learned) ? "Predictions answer with what was learned before." : "";
  say(byId("teach-why"), running ? before : why || hint);
  const left = !running && byId("lesson").contains(document.activeElement);
  byId("lesson").hidden = !running;
  if (left) byId("teach").focus({ preventScroll: true }); // the keyboard stays where it was
  if (running && !source && state.connected) listen();
}

/** A number of the lesson, shown only where the learner has it. @param {string} id @param {string | null} text */
function showNumber(id, text) {
  const value = byId(id);
  value.parentElement.hidden = text === null;
  if (text !== null) say(value, text);
}

/** @param {Progress} progress */
function show({ phase, step, steps, loss, accuracy, held_back: heldBack, right, tested, seconds_left: left }) {
  byId("lesson").hidden = false;
  say(byId("lesson-phase"), PHASES[phase] ?? phase);
  const bar = byId("lesson-bar");
  if (step !== null && steps) { bar.max = steps; bar.value = step; } else bar.removeAttribute("value");
  showNumber("lesson-step", step !== null && steps ? `${step} of ${steps}${phase === "adapter" ? "" : " pictures"}` : null);
  showNumber("lesson-loss", loss === null ? null : loss.toFixed(3));
  showNumber("lesson-accuracy", accuracy === null ? null : percent(accuracy));
  showNumber("lesson-held-back", heldBack === null ? null : score(right, tested, heldBack));
  say(byId("lesson-held-back").previousElementSibling, `Held-back pictures right ${phase === "testing" ? "now" : "before"}`);
  showNumber("lesson-left", left === null ? "not known yet" : duration(left));
}

/** What a lesson did to the classes known before it, in a sentence. @param {import("./api.js").Lesson} lesson */
export function forgotten({ accuracy_before: before, accuracy_after: after, right_before: rightBefore, right_after: rightAfter }) {
  const known = state.classes.filter(({ id }) => (before[id] ?? null) !== null && (after[id] ?? null) !== null);
  if (!known.length) return "Try it with other pictures.";
  const lost = known.filter(({ id }) => Math.round(Number(after[id])) < Math.round(Number(before[id])));
  if (!lost.length) return "No class that it knew has fewer held-back pictures right than before.";
  const pictures = lost.map(({ id }) => rightBefore[id] - rightAfter[id]); // not told by lessons of earlier versions
  const few = pictures.every(number => number === 1) ? ` It is one picture${lost.length > 1 ? " of each" : ""}, which may be chance.` : "";
  return `Fewer held-back pictures of ${list(lost.map(({ name }) => name))} are right than before.${few}`;
}

/** @type {EventSource | null} */
let source = null;

function listen() {
  source = new EventSource(address("lessons/current/events"));
  const end = () => { source?.close(); source = null; };
  /** @param {string} kind @param {(data: any) => void} act */
  const on = (kind, act) => source?.addEventListener(kind, event => {
    if (kind !== "progress") end();
    act(JSON.parse(/** @type {MessageEvent} */ (event).data));
    if (kind !== "progress") refresh().catch(report);
  });
  on("progress", show);
  on("finished", lesson => tell(`Lesson ${lesson.number} is learned.`, { remedy: forgotten(lesson) }));
  on("failed", problem => tell(problem.detail ?? "The lesson failed.", { kind: "error", remedy: problem.remedy ?? "The model is as it was before it." }));
  on("cancelled", () => tell("Cancelled. The model is as it was before the lesson."));
  source.onerror = () => { end(); setTimeout(() => refresh().catch(report), 500); };
}

export function startLessons() {
  follow(draw);
  document.addEventListener("zofc-connected", () => { source?.close(); source = null; draw(); });
  byId("teach-button").addEventListener("click", async () => {
    show({ number: 0, phase: "features", step: null, steps: null, loss: null, accuracy: null, held_back: null, right: null, tested: null, seconds_left: null });
    await attempt(() => api.teach());
    if (!state.status?.lesson) await lastEnd();
    byId("lesson-cancel").focus({ preventScroll: true });
  });
  byId("lesson-cancel").addEventListener("click", () => api.cancel().catch(error => {
    if (!(error instanceof Problem && error.status === 404)) report(error); // it ended before
  }));
}

/** A lesson that ended before the page could listen: its end is told all the same. */
async function lastEnd() {
  if (!source && state.lessons.length) listen();
}
