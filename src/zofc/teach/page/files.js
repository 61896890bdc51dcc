// @ts-check
// Files that a person drops, pastes or chooses: which class they are of, and their way to the server in batches.
import { api, Problem } from "./api.js";
import { byId, count, say, tell } from "./dom.js";
import { redraw, refresh, report, state } from "./state.js";

/** @typedef {{name: string | null, files: File[]}} Group  pictures of one folder; loose ones have no name */
/** @typedef {{path: string[], file: File}} Found  a file and the folders that it was in */

const HIDDEN = /^(\..*|thumbs\.db|desktop\.ini)$/i;
const BATCH = 16; // a small number shows progress; the server allows more

/**
 * @param {FileSystemEntry} entry
 * @param {string[]} path
 * @returns {Promise<Found[]>}
 */
async function walk(entry, path) {
  if (HIDDEN.test(entry.name)) return [];
  if (entry.isFile) {
    const file = await new Promise((done, fail) => /** @type {FileSystemFileEntry} */ (entry).file(done, fail));
    return [{ path, file }];
  }
  const reader = /** @type {FileSystemDirectoryEntry} */ (entry).createReader();
  const found = [];
  for (;;) { // a reader gives at most a hundred entries at a time
    /** @type {FileSystemEntry[]} */
    const entries = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (!entries.length) return found;
    for (const below of entries) found.push(...await walk(below, [...path, entry.name]));
  }
}

/**
 * Everything in a drop or on the clipboard. Entries must be taken before the first wait: the browser then forgets them.
 * @param {DataTransfer} transfer
 * @returns {Promise<Found[]>}
 */
export async function filesOf(transfer) {
  const items = [...transfer.items].filter(item => item.kind === "file");
  const entries = items.map(item => item.webkitGetAsEntry?.() ?? null);
  const files = items.map(item => item.getAsFile());
  const found = [];
  for (const [number, entry] of entries.entries()) {
    const file = files[number];
    if (entry) found.push(...await walk(entry, []));
    else if (file) found.push({ path: [], file });
  }
  return found;
}

/** @param {FileList} list  of an input, whose files know their folders if it takes folders @returns {Found[]} */
export const chosen = list => [...list].filter(file => !HIDDEN.test(file.name))
  .map(file => ({ path: file.webkitRelativePath.split("/").slice(0, -1), file }));

/**
 * Groups by class. A folder with pictures in it is a class; a folder of folders is a class for each of them.
 * @param {Found[]} found
 * @returns {Group[]}
 */
export function groups(found) {
  const flat = new Set(found.filter(({ path }) => path.length === 1).map(({ path }) => path[0]));
  /** @type {Map<string | null, File[]>} */
  const by = new Map();
  for (const { path, file } of found) {
    const name = !path.length ? null : flat.has(path[0]) ? path[0] : path[1];
    by.set(name, [...by.get(name) ?? [], file]);
  }
  return [...by].map(([name, files]) => ({ name, files }));
}

/**
 * Parts of a list of files that the server takes at once; what it never takes is left out with a reason.
 * @param {File[]} files
 * @param {{most?: number}} [options]
 */
export function batches(files, { most = BATCH } = {}) {
  const limits = state.status?.limits;
  /** @type {{name: string, reason: string}[]} */
  const refused = [];
  /** @type {File[][]} */
  const parts = [];
  let bytes = Infinity;
  for (const file of files) {
    if (file.type && !file.type.startsWith("image/")) { refused.push({ name: file.name, reason: "not a picture" }); continue; }
    if (limits && file.size > limits.file_bytes) {
      refused.push({ name: file.name, reason: `larger than ${Math.round(limits.file_bytes / 2 ** 20)} MiB` });
      continue;
    }
    bytes += file.size + 1024; // and the lines between parts of a form
    if (bytes > 0.95 * (limits?.request_bytes ?? 2 ** 24) || (parts.at(-1)?.length ?? 0) >= Math.min(most, limits?.files ?? most)) {
      parts.push([]);
      bytes = file.size + 1024;
    }
    parts.at(-1)?.push(file);
  }
  return { parts, refused };
}

/** A name as the server keeps it: some systems compose the letters of folders otherwise. @param {string} name */
const tidy = name => name.normalize("NFC").trim().replace(/\s+/g, " ");

/** The class of that name, new if there is none. @param {string} name */
async function classNamed(name) {
  const known = state.classes.find(one => one.name === tidy(name));
  if (known) return known;
  const made = await api.addClass(name);
  state.classes.push(made);
  return made;
}

let stopped = false;
let total = 0;
let done = 0;
let queue = Promise.resolve();

function show() {
  byId("upload").hidden = state.uploading === 0;
  byId("upload-bar").value = total ? done / total : 0;
  say(byId("upload-text"), `Adding ${done} of ${count(total, "picture")}`);
}

/**
 * Send pictures to classes by id, or by name, one batch after another; what is refused is listed with the reasons.
 * @param {{id?: string, name?: string, files: File[]}[]} jobs
 * @returns {Promise<void>}
 */
export function upload(jobs) {
  total += jobs.reduce((sum, { files }) => sum + files.length, 0);
  state.uploading += 1;
  show();
  queue = queue.then(() => send(jobs)).catch(report).finally(() => {
    state.uploading -= 1;
    if (!state.uploading) { total = 0; done = 0; stopped = false; }
    show();
    redraw();
  });
  return queue;
}

/** @param {{id?: string, name?: string, files: File[]}[]} jobs */
async function send(jobs) {
  /** @type {{name: string, reason: string}[]} */
  const problems = [];
  let added = 0;
  let present = 0;
  try {
    for (const { id, name, files } of jobs) {
      const { parts, refused } = batches(files);
      problems.push(...refused);
      done += refused.length;
      if (!parts.length || stopped) continue;
      const target = id ?? (await classNamed(name ?? "")).id;
      for (const part of parts) {
        if (stopped) break;
        const answer = await api.addPictures(target, part);
        added += answer.added.length;
        present += answer.present.length;
        problems.push(...answer.refused);
        done += part.length;
        show();
        await refresh();
      }
    }
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    report(error);
  }
  await refresh().catch(report);
  const here = present ? `, ${present.toLocaleString("en")} already here` : "";
  if (problems.length) {
    tell(`${count(added, "picture")} added${here}, ${count(problems.length, "file")} refused.`,
      { kind: "error", details: problems.map(({ name, reason }) => `${name}: ${reason}`) });
  } else if (present) tell(`${count(added, "picture")} added${here}.`);
}

export function startUploads() {
  byId("upload-stop").addEventListener("click", () => { stopped = true; });
}
