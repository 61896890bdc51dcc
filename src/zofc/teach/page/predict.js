// @ts-check
// Try it: answers for pictures and for the camera, with calibrated bars and "none of these".
import { api, Problem } from "./api.js";
import { openCamera, takePicture } from "./camera.js";
import { byId, make, percent, say, tell } from "./dom.js";
import { batches, chosen, upload } from "./files.js";
import { follow, report, state } from "./state.js";

/** @typedef {import("./api.js").Answer} Answer */

const KEPT = 12; // pictures with answers on the page
const PAUSE = 150; // milliseconds between live answers
const SPOKEN = 3000; // milliseconds between live answers for screen readers

/** @param {string} name @param {number} share @param {string} [kind] */
function bar(name, share, kind = "") {
  const fill = make("span", { class: "fill" });
  fill.style.width = `${Math.max(0.5, share * 100)}%`;
  return make("li", { class: kind }, make("span", { class: "name", title: name }, name),
    make("span", { class: "track", "aria-hidden": "true" }, fill), make("span", { class: "number" }, percent(share * 100)));
}

/** The bars of an answer. @param {Answer} answer */
function bars({ answers = [], none_of_these: none, error }) {
  if (error) return make("p", { class: "wrong" }, error);
  return make("div", { class: none ? "bars none" : "bars" },
    none && make("p", { class: "verdict" }, make("strong", {}, "None of these"), make("span", { class: "soft" }, " looks unlike every class taught; the nearest are")),
    make("ul", {}, ...answers.map(({ class: name, probability }, rank) => bar(name, probability, rank || none ? "" : "best"))));
}

/** @param {Answer} answer */
const verdict = ({ answers = [], none_of_these: none, error }) =>
  error ?? (none || !answers.length ? "None of these" : `${answers[0].class}, ${percent(answers[0].probability * 100)}`);

/** @param {File[]} files */
export async function ask(files) {
  if (!state.classes.some(one => one.learned)) return report(new Problem("Nothing is taught yet.", "Teach two classes first, then try pictures.", -1));
  const { parts, refused } = batches(files, { most: Math.min(8, state.status?.limits.predict_files ?? 8) });
  if (refused.length) tell("Some files cannot be tried.", { kind: "error", details: refused.map(({ name, reason }) => `${name}: ${reason}`) });
  try {
    for (const part of parts) {
      const answers = await api.predict(part);
      answers.forEach((answer, number) => add(part[number], answer));
      say(byId("try-said"), answers.length === 1 ? verdict(answers[0]) : `${answers.length} answers`);
    }
  } catch (error) {
    report(error);
  }
}

/** @param {File} file @param {Answer} answer */
function add(file, answer) {
  const url = URL.createObjectURL(file);
  const list = byId("answers");
  list.prepend(make("li", {}, make("img", { src: url, alt: file.name }), make("div", {}, bars(answer), !answer.error && correction(file))));
  for (const old of [...list.children].slice(KEPT)) {
    URL.revokeObjectURL(old.querySelector("img").src);
    old.remove();
  }
}

/** A wrong answer becomes a picture of the right class. @param {File} file */
function correction(file) {
  const choice = make("select", { class: "correct", "aria-label": `Right class of ${file.name}` }, ...choices());
  choice.addEventListener("change", async () => {
    const one = state.classes.find(({ id }) => id === choice.value);
    if (!one) return;
    choice.disabled = true; // a picture is of one class
    await upload([{ id: one.id, files: [file] }]);
    tell(`Added to ${one.name}.`, { remedy: "Teach again to learn from it." });
  });
  return choice;
}

const choices = () => [make("option", { value: "" }, "Wrong? Add it to…"), ...state.classes.map(({ id, name }) => make("option", { value: id }, name))];

/** @type {(() => void) | null} */
let closeLive = null;

async function live() {
  if (closeLive) return closeLive();
  const button = byId("try-camera");
  const place = byId("try-live");
  let open = true;
  const { video, close } = await openCamera(place, () => {
    open = false;
    closeLive = null;
    button.ariaPressed = "false";
    place.replaceChildren();
  });
  closeLive = close;
  button.ariaPressed = "true";
  const answer = make("div", { id: "try-now" });
  place.append(answer);
  let spoken = 0;
  while (open) {
    const file = document.hidden || !state.connected ? null : await takePicture(video);
    if (file) {
      try {
        const [found] = await api.predict([file]);
        if (!open) return;
        answer.replaceChildren(bars(found));
        if (Date.now() - spoken > SPOKEN) { say(byId("try-said"), verdict(found)); spoken = Date.now(); }
      } catch (error) {
        close();
        report(error);
      }
    }
    await new Promise(done => setTimeout(done, PAUSE));
  }
}

let offered = ""; // the classes in the lists of corrections

function draw() {
  const now = JSON.stringify(state.classes.map(({ id, name }) => [id, name]));
  if (now !== offered) {
    offered = now;
    for (const choice of /** @type {NodeListOf<HTMLSelectElement>} */ (document.querySelectorAll(".correct:enabled"))) choice.replaceChildren(...choices());
  }
  const ready = state.classes.some(one => one.learned);
  byId("try-tools").hidden = !ready;
  byId("try-why").hidden = ready;
  say(byId("try-why"), ready ? "" : "After the first lesson, drop pictures here or point the camera at things.");
}

export function startPredictions() {
  follow(draw);
  const input = byId("try-files");
  input.addEventListener("change", () => { ask(chosen(input.files).map(({ file }) => file)); input.value = ""; });
  byId("try-camera").addEventListener("click", () => live().catch(report));
}
