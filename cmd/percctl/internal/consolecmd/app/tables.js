// Tables: how large they are, and which keys are busy.

import { h, fill, paint, card, table, empty, link, num, bytes, duration, plural, clock, compact } from './dom.js';
import { heat } from './charts.js';
import { offer } from './actions.js';
import * as api from './api.js';

export default function tables(main, params) {
  const filter = h('input', { type: 'search', placeholder: 'Find a table', 'aria-label': 'Find a table', oninput: () => show() });
  const list = h('div'), detail = h('div'), gc = h('div');
  fill(main, h('div.title', {}, h('h1', {}, 'Tables'), filter), detail, list, gc);
  let all = [], state = null, what = 'locks', reading = false, gone = false, chosen = params.table;
  const shape = (t) => (t.sample.versions ? Math.round(100 * t.sample.garbage / t.sample.versions) + ' %' : '–');

  const some = (t, n) => (t.complete ? '' : '≥ ') + num(n);

  function show() {
    const q = filter.value.toLowerCase();
    const found = all.filter((t) => t.name.toLowerCase().includes(q));
    paint(list, card('', found.length ? [table([['Table'], ['Rows', 'n'], ['Size', 'n'], ['Locks', 'n'], ['Pending', 'n'], ['Conflicts', 'n wide'], ['Garbage', 'n'], ['Read within', 'n wide']], found.slice(0, 250).map((t) => [
      h('a', { href: link('tables', { table: t.name }), 'aria-current': t.name === chosen ? 'true' : undefined }, t.name), some(t, t.rows), bytes(t.bytes), some(t, t.locks), some(t, t.pending), num(t.conflicts), shape(t), t.complete ? duration(t.oldest_seconds) : 'first pass']), 'Tables'),
      h('p.muted', {}, 'Garbage: versions that newer ones hide, in a sample of rows. Read within: the age of the row that was not read for the longest.')]
      : empty(all.length ? 'No table has this name.' : 'There is no transactional table. percctl table init makes one.')));
  }

  function collection() {
    if (!state) return;
    const run = state.gc.run, phase = run.phase;
    const busy = state.gc.lease_holder && phase === 'collect';
    const at = all.findIndex((t) => t.name === run.table);
    const total = all.reduce((n, t) => n + t.rows, 0);
    const share = busy && total ? Math.min(1, run.rows / total) : null;
    const spent = (state.ts - run.started_ts) / 1e6;
    paint(gc, card('Garbage collection',
      share !== null && h('div.progress', { role: 'progressbar', 'aria-valuenow': Math.round(share * 100), 'aria-valuemin': 0, 'aria-valuemax': 100 }, h('i', { style: { width: (share * 100).toFixed(1) + '%' } })),
      share !== null && h('p', {}, h('b', {}, Math.round(share * 100) + ' %'), ` of ${plural(total, 'row')}, ${share > 0.01 ? 'about ' + duration(spent / share - spent) + ' left' : 'just begun'}${at >= 0 ? `, table ${at + 1} of ${all.length}` : ''}`),
      h('dl.facts', {}, state.gc_facts.map(([n, w]) => [h('dt', {}, n), h('dd', {}, w)])), h('div.actions', {}, offer('Collect', { action: 'gc' }))));
  }

  const canvas = h('canvas.heat', { role: 'img', tabindex: '0', 'aria-label': 'Heat map: keys over time. The arrow keys choose a field.' }), tip = h('p.muted.tip', { 'aria-live': 'polite' }, ''), keys = h('div.keys'), axis = h('div.heat-axis'), head = h('h2');
  const kinds = [['locks', 'Locks', 'c1'], ['pending', 'Pending', 'c2'], ['conflicts', 'Conflicts', 'c3']];
  const tabs = h('div.tabs', { role: 'group', 'aria-label': 'What the heat map shows' }, kinds.map(([k, title]) => h('button', { type: 'button', 'aria-pressed': String(k === what), onclick: (e) => { what = k; for (const b of tabs.children) b.setAttribute('aria-pressed', String(b === e.target)); draw(); } }, title)));
  let map = null, drawn = null, field = null; // that the arrow keys chose
  fill(detail, h('section.card', {}, h('div.head', {}, head, tabs), h('div.heatmap', {}, keys, h('div', {}, canvas, axis)), tip));

  function draw() {
    if (!map) return;
    const rows = map.bounds.length + 1, slots = map.slots.filter((s) => s.locks.length === rows);
    canvas.style.height = Math.max(96, Math.min(rows, 24) * 14) + 'px';
    drawn = heat(canvas, slots, rows, (s) => s[what], map.slot_seconds, 60, kinds.find(([k]) => k === what)[2]);
    const label = (i) => (i === 0 ? '(first)' : map.bounds[i - 1]);
    paint(keys, rows === 1 ? h('span', {}, 'all keys') : [0, Math.floor(rows / 2), rows - 1].map((i) => h('span', { title: label(i) }, label(i))));
    paint(axis, slots.length ? [h('span', {}, clock(drawn.first * 1e6, 0)), h('span', {}, '10 minutes'), h('span', {}, clock(slots[slots.length - 1].t * 1e6, 0))] : h('span', {}, all.find((t) => t.name === chosen)?.complete ? 'nothing has been locked or pending since the console started' : 'nothing found so far: the first pass is under way'));
    const within = (v, lo, hi) => Math.max(lo, Math.min(hi, v));
    field &&= { t: within(field.t, drawn.first, drawn.last), row: within(field.row, 0, rows - 1) };
    if (field && slots.length) drawn.mark(field);
    canvas.onkeydown = (e) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
      if (!step || !slots.length) return;
      e.preventDefault();
      field = field ? { t: field.t + step[0] * map.slot_seconds, row: field.row + step[1] } : { t: drawn.last, row: 0 };
      draw();
      tell(field);
    };
    canvas.onmousemove = (e) => tell(drawn.at(e.offsetX, e.offsetY));
    const tell = ({ t, row }) => {
      const s = slots.find((x) => x.t === t);
      tip.textContent = `${clock(t * 1e6, 0)}, from ${label(row)}: ` + (s ? `${compact(s.locks[row])} locks, ${compact(s.pending[row])} pending, ${compact(s.conflicts[row])} conflicts` : 'not seen');
    };
    if (!tip.textContent) tip.textContent = 'Each line is a range of keys with about as many rows. Point at a field to read it, or use the arrow keys.';
  }

  async function read() {
    if (reading || gone) return;
    reading = true;
    try {
      all = await api.get('api/tables');
      chosen ??= [...all].sort((a, b) => b.locks + b.pending - a.locks - a.pending)[0]?.name;
      detail.hidden = !chosen;
      if (chosen) {
        paint(head, 'Busy keys of ', h('span.mono', {}, chosen));
        map = await api.get('api/heat', { table: chosen });
      }
    } catch (e) { paint(head, h('span.bad', {}, e.message)); map = null; }
    reading = false;
    if (gone) return;
    show();
    draw();
    collection();
  }
  return { leave() { gone = true; }, update(s) { state = s; read(); } };
}
