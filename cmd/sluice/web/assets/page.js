// Keeps the marked parts of a page up to date. Everything works without it.
(() => {
  'use strict';
  const every = 2000, slowest = 30000;
  const button = document.getElementById('live');
  const note = document.getElementById('live-note');
  const parts = document.querySelectorAll('[data-live]');

  // morph makes old equal to new and keeps the nodes, and so the focus, wherever it can.
  function morph(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(document.importNode(fresh, true));
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.nodeValue = fresh.nodeValue;
      return;
    }
    for (const {name} of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const {name, value} of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    morphChildren(old, fresh);
  }

  // key says which row of a table a node is: rows come and go, and a row must not become another under a finger.
  const key = (node) => (node.getAttribute ? node.getAttribute('data-key') : null);

  function morphChildren(old, fresh) {
    const rows = new Map();
    for (const node of old.children) if (key(node) !== null) rows.set(key(node), node);
    let at = old.firstChild;
    for (const node of [...fresh.childNodes]) {
      const k = key(node);
      const row = k === null ? null : rows.get(k);
      if (row) {
        rows.delete(k);
        if (row === at) at = at.nextSibling;
        else old.insertBefore(row, at);
        morph(row, node);
      } else if (k === null && at && key(at) === null) {
        const next = at.nextSibling;
        morph(at, node);
        at = next;
      } else {
        old.insertBefore(document.importNode(node, true), at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function apply(page) {
    const focused = document.activeElement;
    for (const part of parts) {
      const fresh = page.getElementById(part.id);
      if (fresh) morph(part, fresh);
    }
    // Moving a row takes the focus from it.
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({preventScroll: true});
  }

  let timer = 0, request = null, on = true, pause = every, good = Date.now();

  function later() {
    clearTimeout(timer);
    if (on && !document.hidden) timer = setTimeout(ask, pause);
  }

  function say(text) {
    if (note.textContent !== text) note.textContent = text; // a change is read out
  }

  function ask() {
    if (request) return;
    request = new XMLHttpRequest();
    request.open('GET', location.href);
    request.responseType = 'document'; // parsed without running anything
    request.timeout = 15000;
    request.setRequestHeader('Sluice-Live', '1');
    request.onloadend = () => {
      const ok = request.status === 200 && request.response;
      const page = request.response;
      request = null;
      pause = ok ? every : Math.min(pause * 2, slowest);
      if (on && ok) apply(page);
      if (ok) good = Date.now();
      say(!on || ok ? '' : `No answer: these figures are as of ${Math.round((Date.now() - good) / 1000)} s ago`);
      later();
    };
    request.send();
  }

  if (button && parts.length) {
    button.hidden = false;
    button.addEventListener('click', () => {
      on = !on;
      button.setAttribute('aria-pressed', String(on));
      if (on) ask();
      else {
        clearTimeout(timer);
        say('');
      }
    });
    document.addEventListener('visibilitychange', () => (document.hidden ? clearTimeout(timer) : on && ask()));
    later();
  }

  const all = document.getElementById('all');
  const form = document.getElementById('selection');
  const picked = document.getElementById('picked');
  if (all && form && picked) {
    const boxes = [...form.querySelectorAll('input[name="id"]')];
    const count = () => {
      const n = boxes.filter((box) => box.checked).length;
      all.checked = n > 0 && n === boxes.length;
      all.indeterminate = n > 0 && n < boxes.length;
      picked.textContent = n === 0 ? 'With those selected:' : `With ${n} selected:`;
    };
    all.hidden = boxes.length === 0;
    all.addEventListener('change', () => {
      for (const box of boxes) box.checked = all.checked;
      count();
    });
    form.addEventListener('change', (event) => event.target !== all && count());
    count();
  }
})();
