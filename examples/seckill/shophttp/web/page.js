// Keeps the page up to date.
(() => {
  'use strict';
  const live = document.getElementById('live');
  const note = document.getElementById('note');
  async function refresh() {
    try {
      const page = await (await fetch('/', {cache: 'no-store'})).text();
      const fresh = new DOMParser().parseFromString(page, 'text/html').getElementById('live');
      live.replaceChildren(...document.importNode(fresh, true).childNodes);
      note.textContent = '';
    } catch {
      note.textContent = 'The sale is over: these are its last figures.';
    }
    setTimeout(refresh, 500);
  }
  setTimeout(refresh, 500);
})();
