// @ts-check
// The camera: one stream for the whole page, pictures of what it sees.
import { make } from "./dom.js";
import { Problem } from "./api.js";

const EDGE = 640; // pixels of the longer edge; every backbone sees less

/** @type {(() => void) | null} */
let release = null; // closes whatever shows the camera now

/**
 * Show the camera in an element until `close` is called, or another part of the page takes it.
 * @param {HTMLElement} place
 * @param {() => void} closed called once, however it ends
 * @returns {Promise<{video: HTMLVideoElement, close: () => void}>}
 */
export async function openCamera(place, closed) {
  release?.();
  if (!navigator.mediaDevices) {
    throw new Problem("This browser lends its camera only to pages of this machine.", "Open the page as http://127.0.0.1, or choose pictures instead.", -1);
  }
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } }, audio: false });
  } catch (error) {
    const denied = error instanceof DOMException && error.name === "NotAllowedError";
    throw new Problem(denied ? "The camera is blocked for this page." : "No camera was found.",
      denied ? "Allow it in the address bar, then try again." : "Connect one, or choose pictures instead.", -1);
  }
  const video = make("video", { muted: true, autoplay: true, playsInline: true, "aria-label": "What the camera sees" });
  video.srcObject = stream;
  place.prepend(video);
  const close = () => {
    if (release === close) release = null;
    for (const track of stream.getTracks()) track.stop();
    video.remove();
    closed();
  };
  release = close;
  for (const track of stream.getTracks()) track.addEventListener("ended", close, { once: true });
  await video.play().catch(() => undefined);
  return { video, close };
}

/**
 * What the camera sees now, as a JPEG file.
 * @param {HTMLVideoElement} video
 * @returns {Promise<File | null>} null while the camera has not started
 */
export async function takePicture(video) {
  const scale = Math.min(1, EDGE / Math.max(video.videoWidth, video.videoHeight));
  if (!video.videoWidth) return null;
  const canvas = make("canvas", { width: Math.round(video.videoWidth * scale), height: Math.round(video.videoHeight * scale) });
  canvas.getContext("2d")?.drawImage(video, 0, 0, canvas.width, canvas.height);
  /** @type {Blob | null} */
  const blob = await new Promise(done => canvas.toBlob(done, "image/jpeg", 0.9));
  return blob && new File([blob], "camera.jpg", { type: "image/jpeg" });
}
