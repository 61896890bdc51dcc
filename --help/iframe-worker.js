/* Browsers start no web worker for a page on disk. There the worker's script runs in a hidden frame, so that the search
   works without a server. */
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) => this.onmessage?.(new MessageEvent("message", { data }));
      this.ready = new Promise((onload, onerror) => {
        const script = Object.assign(this.scope.document.createElement("script"), { onload, onerror });
        script.src = new URL(url, location.href);
        this.scope.document.body.appendChild(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.scope.frameElement.remove();
    }
  };
}
