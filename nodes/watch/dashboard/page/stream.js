// The connection of this page to its process. It comes back by itself.

import { store, take } from "./store.js";

const SILENT = 4000; // ms; the process speaks each second
const AGAIN = 1000; // ms

export function listen(changed) {
  let source = null;
  let timer = 0;
  const open = () => {
    source = new EventSource("/stream");
    source.onmessage = (message) => {
      take(JSON.parse(message.data));
      changed(true);
    };
    source.onerror = () => {
      changed(false);
      // A browser gives up after some answers, such as 503; this page does not.
      if (source.readyState === EventSource.CLOSED) again();
    };
  };
  const again = () => {
    clearTimeout(timer);
    source.close();
    timer = setTimeout(open, AGAIN);
  };
  setInterval(() => {
    const silent = performance.now() - store.heard > SILENT;
    changed(!silent);
    if (silent && source.readyState === EventSource.OPEN) again();
  }, 1000);
  open();
}
