/* Search from the disk: browsers start no worker on file://, so the search script runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      this.ready = new Promise((resolve) => {
        frame.addEventListener("load", () => {
          const inner = frame.contentWindow;
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const load = (source) =>
            new Promise((loaded) => {
              const script = inner.document.createElement("script");
              script.src = new URL(source, document.baseURI);
              script.addEventListener("load", loaded);
              inner.document.body.append(script);
            });
          inner.importScripts = (...sources) =>
            sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
          load(address).then(() => resolve(inner));
        }, { once: true });
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }
  };
}
