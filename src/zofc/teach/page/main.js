// @ts-check
// Starts the parts of the page, and takes what is dropped or pasted anywhere to the part under it.
import { download } from "./api.js";
import { receive, startClasses } from "./classes.js";
import { byId, make, say, tell } from "./dom.js";
import { filesOf, startUploads } from "./files.js";
import { startGallery } from "./gallery.js";
import { startLessons } from "./lesson.js";
import { startMemory } from "./memory.js";
import { ask, startPredictions } from "./predict.js";
import { follow, refresh, report, state, watch } from "./state.js";

/** Where a drop or paste goes: a class, the trial, or new classes. @param {EventTarget | Element | null} target */
const zone = target => /** @type {HTMLElement | null} */ (target instanceof Element ? target.closest("[data-drop]") : null);

/** @param {HTMLElement | null} place @param {DataTransfer} transfer */
async function take(place, transfer) {
  const found = await filesOf(transfer);
  if (place?.dataset.drop === "try") await ask(found.map(({ file }) => file));
  else receive(place?.dataset.id, found);
}

function startDrops() {
  const mark = (/** @type {HTMLElement | null} */ place) => {
    for (const marked of document.querySelectorAll(".over")) if (marked !== place) marked.classList.remove("over");
    place?.classList.add("over");
  };
  addEventListener("dragover", event => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault(); // or the browser would open the file in place of the page
    mark(zone(event.target) ?? byId("new-class"));
  });
  addEventListener("dragleave", event => { if (!event.relatedTarget) mark(null); });
  addEventListener("drop", event => {
    mark(null);
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    take(zone(event.target), event.dataTransfer).catch(report);
  });
  addEventListener("paste", event => {
    if (!event.clipboardData?.types.includes("Files")) return;
    event.preventDefault();
    const over = [...document.querySelectorAll("[data-drop]:hover")].at(-1) ?? null;
    const focus = zone(document.activeElement);
    take(focus ?? zone(over) ?? (state.classes.some(one => one.learned) ? byId("try") : byId("new-class")), event.clipboardData).catch(report);
  });
}

function startExport() {
  const menu = byId("export");
  addEventListener("click", event => { if (menu.open && event.target instanceof Node && !menu.contains(event.target)) menu.open = false; });
  menu.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  for (const button of menu.querySelectorAll("[data-export]")) {
    button.addEventListener("click", async () => {
      menu.open = false;
      button.disabled = true;
      const done = tell("The export is being written…", { remedy: button.dataset.wait, stay: true });
      await download(button.dataset.export).then(() => tell("The export is in your downloads."), report);
      done();
      button.disabled = false;
    });
  }
}

/** What is served, warnings, and whether the server answers. */
function draw() {
  const { status, refused } = state;
  const offline = byId("offline");
  offline.hidden = state.connected;
  if (refused) say(offline, "This page is no longer valid: open the address that zofc teach printed when it was started.");
  else if (state.connected) offline.replaceChildren();
  else if (!offline.textContent) {
    offline.append("The server has stopped. Start it again with ", make("code", {}, `zofc teach ${status?.run ?? "RUN"}`), ": this page then goes on by itself, or tells you to open another address.");
  }
  document.querySelector("main")?.toggleAttribute("inert", refused);
  if (refused) for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  byId("export").hidden = refused || !state.classes.some(one => one.learned);
  if (!status) return;
  say(byId("about"), `${status.run.split(/[\\/]/).pop()} · ${status.learner} · ${status.backbone} · ${status.device}`);
  byId("about").title = status.run;
  const warnings = byId("warnings");
  warnings.hidden = !status.warnings.length;
  if (warnings.textContent !== status.warnings.join("")) warnings.replaceChildren(...status.warnings.map(text => make("li", {}, text)));
}

follow(draw);
startClasses();
startUploads();
startGallery();
startLessons();
startPredictions();
startMemory();
startDrops();
startExport();
refresh().catch(report).finally(() => { document.documentElement.dataset.ready = "yes"; watch(); });
