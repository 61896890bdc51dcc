// @ts-check
// The HTTP API of `zofc teach`: the token, requests, errors with their remedy, and addresses for images and downloads.

/** @typedef {{id: string, name: string, images: number, held_back: number, pending: number, removed_pending: number, gallery: string, learned: boolean, accuracy: number | null, right: number | null, tested: number | null}} TaughtClass */
/** @typedef {{id: string, held_back: boolean, learned: boolean}} Picture */
/** @typedef {{number: number, phase: string, step: number | null, steps: number | null, loss: number | null, accuracy: number | null, held_back: number | null, right: number | null, tested: number | null, seconds_left: number | null}} Progress */
/** @typedef {{number: number, kind: "lesson" | "forget" | "rename" | "found", classes: string[], images: number, seconds: number, accuracy_before: Record<string, number | null>, accuracy_after: Record<string, number | null>, right_before: Record<string, number>, right_after: Record<string, number>, tested: Record<string, number>, finished: string, undone: boolean, notices: string[]}} Lesson */
/** @typedef {{files: number, file_bytes: number, pixels: number, images_per_class: number, request_bytes: number, predict_files: number}} Limits */
/** @typedef {{version: string, run: string, learner: string, backbone: string, device: string, classes: number, lesson: Progress | null, limits: Limits, warnings: string[], can_undo: boolean, revision: number}} Status */
/** @typedef {{name: string, answers?: {class: string, probability: number}[], none_of_these?: boolean, error?: string}} Answer */

const BASE = "/api/v1/";
const KEY = "zofc-token";

// The token leaves the address bar, so that it is not in the history or in a picture of the screen.
const given = new URLSearchParams(location.search).get("token");
if (given) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}
const token = () => sessionStorage.getItem(KEY) ?? "";

/** What the server refused, and what to do about it. */
export class Problem extends Error {
  /**
   * @param {string} detail
   * @param {string} remedy
   * @param {number} status 0: the server did not answer
   */
  constructor(detail, remedy, status) {
    super(detail);
    this.remedy = remedy;
    this.status = status;
  }
}

/**
 * An address below the API that carries the token, for images, downloads and events, which cannot send a header.
 * @param {string} path
 * @param {Record<string, string | number | boolean>} [query]
 */
export function address(path, query = {}) {
  const search = new URLSearchParams({ ...Object.fromEntries(Object.entries(query).map(([key, value]) => [key, String(value)])), token: token() });
  return `${BASE}${path}?${search}`;
}

/**
 * @param {Response} response
 * @returns {Promise<Problem>}
 */
async function problem(response) {
  const body = await response.json().catch(() => ({}));
  if (response.status === 401 || response.status === 403) {
    return new Problem(body.detail ?? "This page may not talk to the server.", body.remedy ?? "Open the address that zofc teach printed; it carries a token.", response.status);
  }
  const detail = typeof body.detail === "string" ? body.detail : body.title ?? `The server answered ${response.status}.`;
  return new Problem(detail, body.remedy ?? "", response.status);
}

/**
 * @param {string} method
 * @param {string} path
 * @param {object | FormData} [body]
 * @returns {Promise<any>} the JSON of the answer, or null where it has none
 */
async function request(method, path, body) {
  /** @type {Record<string, string>} */
  const headers = { Authorization: `Bearer ${token()}` };
  if (body && !(body instanceof FormData)) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(BASE + path, { method, headers, body: body && (body instanceof FormData ? body : JSON.stringify(body)) });
  } catch {
    throw new Problem("The server does not answer.", "Start it again with: zofc teach", 0);
  }
  if (!response.ok) throw await problem(response);
  return response.status === 204 || !response.headers.get("content-type")?.includes("json") ? null : response.json();
}

/** @param {Blob[]} files */
function form(files) {
  const data = new FormData();
  for (const file of files) data.append("files", file, file instanceof File ? file.name : "picture.jpg");
  return data;
}

export const api = {
  /** @returns {Promise<Status>} */
  status: () => request("GET", "status"),
  /** @returns {Promise<TaughtClass[]>} */
  classes: () => request("GET", "classes"),
  /** @param {string} name @returns {Promise<TaughtClass>} */
  addClass: name => request("POST", "classes", { name }),
  /** @param {string} id @param {string} name */
  rename: (id, name) => request("PATCH", `classes/${encodeURIComponent(id)}`, { name }),
  /** @param {string} id @param {boolean} forGood */
  forget: (id, forGood) => request("DELETE", `classes/${encodeURIComponent(id)}${forGood ? "?for_good=true" : ""}`),
  /** @param {string} id @returns {Promise<Picture[]>} */
  pictures: id => request("GET", `classes/${encodeURIComponent(id)}/images`),
  /** @param {string} id @param {Blob[]} files @returns {Promise<{added: {id: string}[], present: {id: string}[], refused: {name: string, reason: string}[]}>} */
  addPictures: (id, files) => request("POST", `classes/${encodeURIComponent(id)}/images`, form(files)),
  /** @param {string} id */
  removePicture: id => request("DELETE", `images/${encodeURIComponent(id)}`),
  /** @returns {Promise<Lesson[]>} */
  lessons: () => request("GET", "lessons"),
  teach: () => request("POST", "lessons"),
  cancel: () => request("DELETE", "lessons/current"),
  /** @returns {Promise<Lesson>} */
  undo: () => request("POST", "lessons/undo"),
  /** @param {Blob[]} files @returns {Promise<Answer[]>} */
  predict: files => request("POST", "predict?top=5&reject=0.05", form(files)),
};

/** @param {string} id @param {number} [size] */
export const pictureAddress = (id, size) => address(`images/${encodeURIComponent(id)}`, size ? { size } : {});

/**
 * Save an export as a file. It is fetched first, so that an error is shown in place of a file that holds it.
 * @param {string} path
 */
export async function download(path) {
  const response = await fetch(BASE + path, { headers: { Authorization: `Bearer ${token()}` } }).catch(() => null);
  if (!response) throw new Problem("The server does not answer.", "", 0);
  if (!response.ok) throw await problem(response);
  const named = /filename="([^"]+)"/.exec(response.headers.get("content-disposition") ?? "");
  const url = URL.createObjectURL(await response.blob());
  const link = Object.assign(document.createElement("a"), { href: url, download: named?.[1] ?? "zofc.zip" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
