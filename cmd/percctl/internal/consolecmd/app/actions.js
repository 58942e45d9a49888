// Changes: the plan that the command line shows, a question, and what came of it.

import { h, fill, command } from './dom.js';
import * as api from './api.js';

const dialog = document.getElementById('dialog');

let last = 0;

// acted is when an action changed something last, in seconds since 1970.
export const acted = () => last;

// offer is a button for an order; nothing, unless the console may change data.
export function offer(title, order) {
  if (!api.config().writes) return null;
  return h('button.primary', { type: 'button', onclick: () => open(title, order) }, title + '…');
}

function open(title, order) {
  const text = h('pre.output', { tabindex: '0' }, 'Making the plan…'), typed = h('div'), buttons = h('div.actions');
  const close = h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel');
  fill(dialog, h('h2', { id: 'dialog-title' }, title), typed, text, buttons);
  fill(buttons, close);
  dialog.showModal();
  const run = async (path) => {
    const j = await api.job(await api.post(path, order), (j) => {
      fill(typed, command(j.command));
      fill(text, [j.text, j.error].filter(Boolean).join('\n') || (j.done ? 'Done.' : '…'));
    });
    text.classList.toggle('failed', j.code !== 0);
    return j;
  };
  const failed = (e) => { fill(text, e.message); text.classList.add('failed'); };
  run('api/plan').then((j) => {
    if (j.code !== 0) { close.textContent = 'Close'; return; }
    const yes = h('button.primary', { type: 'button', onclick: async () => {
      fill(buttons, h('span.muted', {}, 'Running…'));
      try { await run('api/act'); } catch (e) { failed(e); }
      last = Date.now() / 1000;
      close.textContent = 'Close';
      fill(buttons, close);
      close.focus();
    } }, 'Yes, ' + title.toLowerCase());
    fill(buttons, h('span.question', {}, 'Carry this out?'), close, yes);
    close.focus();
  }, failed);
}
