// Search in pages that are opened from the disk. Browsers start no worker there, so the worker's script runs in a
// hidden frame. The theme's offline plugin would load a script for this from the network.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const scope = frame.contentWindow;
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = scope.document.createElement("script");
          Object.assign(script, { src: source, onload: resolve, onerror: reject });
          scope.document.body.append(script);
        });
      scope.importScripts = (...sources) => Promise.all(sources.map(load));
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.scope = scope;
      this.loaded = load(url);
    }

    postMessage(data) {
      this.loaded.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
  window.Worker = window.IFrameWorker;
}
