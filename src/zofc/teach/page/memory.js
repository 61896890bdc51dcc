// @ts-check
// What it remembers: accuracy of each class before and after the last lesson, over all lessons, and undo.
import { api } from "./api.js";
import { byId, count, duration, list, make, percent, score, tell } from "./dom.js";
import { forgotten } from "./lesson.js";
import { attempt, follow, state } from "./state.js";

/** @typedef {import("./api.js").Lesson} Lesson */

/**
 * Change of a class in a lesson, in words: in pictures where they were counted.
 * @param {number | null | undefined} before percent
 * @param {number | null | undefined} after
 * @param {number} [pictures] that are right more than before
 */
export function change(before, after, pictures) {
  if (after === null || after === undefined) return { text: "–", kind: "" };
  if (before === null || before === undefined) return { text: "new", kind: "up" };
  if (pictures !== undefined && Number.isFinite(pictures) && pictures) {
    return pictures > 0 ? { text: `▲ ${count(pictures, "picture")}`, kind: "up" } : { text: `▼ ${count(-pictures, "picture")}`, kind: "down" };
  }
  const points = Math.round(after) - Math.round(before);
  if (!points) return { text: "as before", kind: "" };
  return points > 0 ? { text: `▲ ${points} points`, kind: "up" } : { text: `▼ ${-points} points`, kind: "down" };
}

/** A cell whose ground shows the accuracy that it says. @param {number | null | undefined} value @param {number | undefined} right @param {number | undefined} tested */
function heat(value, right, tested) {
  const known = right !== undefined && tested;
  const cell = make("td", { class: "heat", title: known ? `${right} of ${count(tested, "picture")}, ${percent(value)}` : undefined }, score(right, tested, value));
  if (value !== null && value !== undefined) cell.style.setProperty("--share", `${Math.round(value * 0.55)}%`);
  else cell.classList.add("none");
  return cell;
}

/** @param {Lesson} last */
function lastTable(last) {
  const rows = state.classes.filter(({ id }) => (last.accuracy_after[id] ?? null) !== null || (last.accuracy_before[id] ?? null) !== null);
  return make("table", { id: "before-after" },
    make("caption", {}, `Lesson ${last.number}, before and after`),
    make("thead", {}, make("tr", {}, ...["Class", "Before", "After", "Change"].map(text => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...rows.map(({ id, name }) => {
      const { accuracy_before: before, accuracy_after: after, right_before: rightBefore, right_after: rightAfter, tested } = last;
      const { text, kind } = change(before[id], after[id], rightAfter[id] - rightBefore[id]);
      return make("tr", {}, make("th", { scope: "row", title: name }, name), heat(before[id], rightBefore[id], tested[id]), heat(after[id], rightAfter[id], tested[id]),
        make("td", { class: `change ${kind}` }, text));
    })));
}

/** @param {Lesson[]} lessons */
function heatMap(lessons) {
  return make("table", { id: "heat-map" },
    make("caption", {}, "After each lesson"),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Class"),
      ...lessons.map(({ number, classes }) => make("th", { scope: "col", title: list(classes) },
        make("span", { class: "hidden-text" }, "Lesson "), String(number))))),
    make("tbody", {}, ...state.classes.filter(({ id }) => lessons.some(lesson => (lesson.accuracy_after[id] ?? null) !== null)).map(({ id, name }) =>
      make("tr", {}, make("th", { scope: "row", title: name }, name),
        ...lessons.map(({ accuracy_after: after, right_after: right, tested }) => heat(after[id], right[id], tested[id]))))));
}

/** @type {Record<Lesson["kind"], string>} */
const VERBS = { lesson: "learned", forget: "forgot", rename: "renamed", found: "found in the run:" };

/** @param {Lesson[]} lessons */
function historyList(lessons) {
  return make("ol", { class: "history", reversed: true, tabIndex: 0, "aria-label": "Lessons, the last first" }, ...[...lessons].reverse().map(({ number, kind, classes, images, seconds, finished, undone, notices: all }) => {
    const notices = [...new Set(all)];
    const when = new Date(finished).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
    const facts = kind === "lesson" ? `, ${count(images, "picture")} in ${duration(seconds)}` : "";
    return make("li", { value: number, class: undone ? "undone" : "" },
      make("span", {}, `${VERBS[kind] ?? kind} ${list(classes)}${facts}`),
      make("small", { class: "soft" }, ` ${when}${undone ? " · undone" : ""}`),
      notices.length > 0 && make("details", { class: "soft" }, make("summary", {}, count(notices.length, "note")),
        ...notices.map(text => make("p", {}, text))));
  }));
}

/** @param {boolean} running */
function undoButton(running) {
  const last = state.lessons.findLast(({ undone }) => !undone);
  const button = make("button", { type: "button", id: "undo", disabled: !state.status?.can_undo || running }, last ? `Undo ${last.kind === "lesson" ? `lesson ${last.number}` : "the last change"}` : "Undo");
  button.addEventListener("click", async () => {
    const undone = await attempt(() => api.undo());
    if (undone) tell(`Undone: ${VERBS[undone.kind] ?? ""} ${list(undone.classes)}. Its pictures are still here.`);
    document.getElementById("undo")?.focus();
  });
  return button;
}

let drawn = "";

function draw() {
  const running = Boolean(state.status?.lesson);
  const now = JSON.stringify([state.lessons, state.classes.map(({ id, name }) => [id, name]), state.status?.can_undo, running]);
  if (now === drawn) return; // the table keeps its place and focus
  drawn = now;
  const lessons = state.lessons.filter(({ undone, accuracy_after: after }) => !undone && Object.keys(after).length);
  const last = lessons.findLast(({ kind }) => kind === "lesson") ?? lessons.at(-1);
  const body = byId("memory-body");
  if (!state.lessons.length) {
    body.replaceChildren(make("p", { class: "soft" }, "After every lesson this shows, for each class, how many of the pictures held back it still knows."));
    return;
  }
  body.replaceChildren(
    make("p", { class: "soft lead" }, "How many of the pictures held back it answers right. Those that it gets wrong after a lesson, and did not before, it has forgotten; of a few pictures, one may be chance."),
    make("div", { class: "tables" },
      last ? make("div", { class: "wide", tabIndex: 0, role: "region", "aria-label": "The last lesson" }, lastTable(last),
        last.kind === "lesson" && make("p", { class: "soft", id: "forgotten" }, forgotten(last))) : "",
      lessons.length ? make("div", { class: "wide", tabIndex: 0, role: "region", "aria-label": "All lessons" }, heatMap(lessons)) : "",
      make("div", { class: "past" }, make("div", { class: "row spread" }, make("h3", {}, "Lessons"), undoButton(running)), historyList(state.lessons))));
}

export function startMemory() {
  follow(draw);
}
