// Row: its versions as swim lanes over time, and what a snapshot reads at the line.

import { h, fill, card, empty, link, num, clock, clean, pill, table as grid } from './dom.js';
import * as api from './api.js';

const laneHeight = 46, axisHeight = 40, pad = 26;

// lanes sorts events by column, acknowledgments of its observers below it.
function lanes(events) {
  const all = new Map();
  const lane = (name, ack) => { if (!all.has(name)) all.set(name, { name, ack, versions: [], locks: [], marks: [] }); return all.get(name); };
  for (const e of events) {
    const ack = e.column.startsWith('_ack:');
    const name = ack ? e.column.slice(5) : e.column;
    const l = lane(name, ack);
    const text = (x) => (x.text !== undefined ? x.text : x.size_bytes ? `${num(x.size_bytes)} bytes` : '');
    switch (e.kind) {
      case 'data': l.marks.push({ ts: e.ts, type: 'data', e }); (l.data ??= new Map()).set(e.ts, ack ? 'acknowledged' : text(e)); break;
      case 'plain data': l.versions.push({ commit: e.ts, start: e.ts, value: text(e), plain: true, e }); break;
      case 'write': l.versions.push({ commit: e.ts, start: e.start_ts, deleted: e.write === 'delete', e }); break;
      case 'lock': l.locks.push({ ts: e.ts, e }); break;
      case 'notify': l.marks.push({ ts: e.ts, type: 'notify', e }); break;
      case 'rollback': l.marks.push({ ts: e.ts, type: 'rollback', e }); break;
      case 'lock-only commit': l.marks.push({ ts: e.ts, type: 'lockonly', e }); break;
      default: l.marks.push({ ts: e.ts, type: 'failure', e });
    }
  }
  for (const l of all.values()) {
    l.versions.sort((a, b) => a.commit - b.commit);
    for (const v of l.versions) if (!v.plain) v.value = v.deleted ? '' : l.data?.get(v.start) ?? '(its value is collected)';
  }
  return [...all.values()].sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
}

// readAt is what a snapshot at s reads of a lane.
function readAt(l, s) {
  const lock = l.locks.find((k) => k.ts <= s);
  const v = [...l.versions].reverse().find((v) => v.commit <= s);
  return { lock, v: v && !v.deleted ? v : null, deleted: v?.deleted ? v : null };
}

export default function row(main, params) {
  const tableName = h('input', { name: 'table', required: true, value: params.table ?? '', placeholder: 'table', 'aria-label': 'Table', list: 'tables', spellcheck: 'false' });
  const key = h('input', { name: 'row', required: true, value: params.row ?? '', placeholder: 'row key (%XX for bytes)', 'aria-label': 'Row key', spellcheck: 'false' });
  const names = h('datalist', { id: 'tables' });
  const body = h('div');
  fill(main, h('div.title', {}, h('h1', {}, 'Row'), params.table && h('span.mono.muted', {}, params.table + ' / ' + params.row)),
    h('form.search', { onsubmit: (e) => { e.preventDefault(); location.hash = link('row', { table: tableName.value.trim(), row: key.value }); } }, tableName, key, names, h('button.primary', {}, 'Show')), body);

  let answer = null, all = [], moments = [], at = 0, gone = false, width = 0;

  function draw() {
    if (!answer) return;
    width = body.clientWidth;
    const label = width < 620 ? 92 : 190;
    const room = Math.max(160, width - label - (width < 620 ? 34 : 42));
    const step = Math.max(30, (room - 2 * pad) / Math.max(moments.length - 1, 1));
    const w = Math.max(room, 2 * pad + step * (moments.length - 1)), x = (ts) => pad + step * moments.indexOf(ts);
    const height = axisHeight + all.length * laneHeight;
    const g = [];
    all.forEach((l, i) => {
      const y = axisHeight + i * laneHeight, mid = y + laneHeight / 2;
      g.push(h('rect', { class: 'lane' + (i % 2 ? ' odd' : ''), x: 0, y, width: w, height: laneHeight }));
      l.versions.forEach((v, n) => {
        const from = x(v.commit), to = n + 1 < l.versions.length ? x(l.versions[n + 1].commit) : w - 6;
        if (!v.deleted) {
          const chars = Math.floor((to - from - 18) / 7);
          g.push(h('g', { class: 'version' + (l.ack ? ' ack' : ''), 'data-from': v.commit, 'data-to': l.versions[n + 1]?.commit ?? 'end' }, h('title', {}, v.e.words), h('rect', { x: from, y: mid - 13, width: Math.max(to - from - 2, 4), height: 26, rx: 5 }),
            chars > 2 && h('text', { x: from + 12, y: mid + 4 }, clean(v.value).length > chars ? clean(v.value).slice(0, chars - 1) + '…' : v.value)));
        }
        if (!v.plain) g.push(h('line', { class: 'span', x1: x(v.start), x2: from, y1: mid, y2: mid }));
        g.push(v.deleted ? h('g', { class: 'mark delete' }, h('title', {}, v.e.words), h('path', { d: `M${from - 4} ${mid - 4}l8 8m0 -8l-8 8` })) : h('g', { class: 'mark record' }, h('title', {}, v.e.words), h('circle', { cx: from, cy: mid, r: 4.5 })));
      });
      for (const k of l.locks) {
        const p = x(k.ts);
        g.push(h('g', { class: 'mark lock' }, h('title', {}, k.e.words), h('line', { x1: p, x2: w - 6, y1: mid + 17, y2: mid + 17 }), h('path', { d: `M${p - 5} ${mid + 12}h10v8h-10zM${p - 3} ${mid + 12}v-3a3 3 0 016 0v3` })));
      }
      for (const m of l.marks) {
        const p = m.ts ? x(m.ts) : w - 14, title = h('title', {}, m.e.words);
        if (m.type === 'data') g.push(h('g', { class: 'mark data' }, title, h('circle', { cx: p, cy: mid, r: 3.5 })));
        else if (m.type === 'notify') g.push(h('g', { class: 'mark notify' }, title, h('path', { d: `M${p - 5} ${mid - 12}h10l-5 -7z` })));
        else if (m.type === 'rollback') g.push(h('g', { class: 'mark rollback' }, title, h('path', { d: `M${p - 5} ${mid - 5}l10 10m0 -10l-10 10` })));
        else if (m.type === 'lockonly') g.push(h('g', { class: 'mark record' }, title, h('rect', { x: p - 4, y: mid - 4, width: 8, height: 8 })));
        else g.push(h('g', { class: 'mark failure' }, title, h('circle', { cx: p, cy: mid - 14, r: 6 }), h('text', { x: p, y: mid - 10.5, 'text-anchor': 'middle' }, '!')));
      }
    });
    let shown = -Infinity;
    const ticks = moments.map((m, i) => {
      const p = pad + step * i;
      const far = p - shown > 92 && (i === moments.length - 1 || w - pad - p > 92 || i === 0);
      const last = i === moments.length - 1;
      if (last || far) shown = p;
      return [h('line', { class: 'tick', x1: p, x2: p, y1: axisHeight - 6, y2: height }), (last || far) && h('text', { class: 'tick-label', x: last ? p - 11 : Math.max(p, 4), y: axisHeight - 14, 'text-anchor': last ? 'end' : i === 0 ? 'start' : 'middle' }, last ? 'now' : m < 1e12 ? 'before' : clock(m))];
    });
    const line = h('g.cursor', { tabindex: '0', role: 'slider', 'aria-label': 'Time of the snapshot', 'aria-valuemin': 0, 'aria-valuemax': moments.length - 1 }, h('line', { y1: 0, y2: height }), h('rect', { x: -7, y: axisHeight - 12, width: 14, height: 14, rx: 4 }));
    const svg = h('svg.lanes', { width: w, height, viewBox: `0 0 ${w} ${height}` }, ticks, g, line);
    const facts = h('div');
    const set = (i) => {
      at = Math.min(moments.length - 1, Math.max(0, i));
      const s = moments[at];
      line.setAttribute('transform', `translate(${pad + step * at} 0)`);
      line.setAttribute('aria-valuenow', at);
      line.setAttribute('aria-valuetext', clock(s, 6));
      for (const v of svg.querySelectorAll('.version')) v.classList.toggle('read', s >= Number(v.dataset.from) && (v.dataset.to === 'end' || s < Number(v.dataset.to)));
      fill(facts, card(['A snapshot at ', at === moments.length - 1 ? 'this moment' : clock(s, 6), ' reads'], h('p.mono.muted', {}, s), grid([['Column'], ['Value'], ['Committed', 'n']], all.filter((l) => !l.ack).map((l) => {
        const r = readAt(l, s);
        const shown = r.v ?? r.deleted;
        return [h('span.mono', {}, l.name), [r.v ? h('span.mono.value', {}, r.v.value === '' ? '(empty)' : r.v.value) : h('span.muted', {}, r.deleted ? 'deleted' : 'nothing'), ' ',
          r.lock && h('a', { href: link('txn', { primary: r.lock.e.primary, start: r.lock.e.start_ts }) }, pill('warn', 'waits for a lock'))], shown?.plain ? 'without a transaction' : shown ? clock(shown.commit, 6) : ''];
      }), 'What the snapshot reads')));
    };
    const drag = (e) => set(Math.round((e.clientX - svg.getBoundingClientRect().left - pad) / step));
    svg.onpointerdown = (e) => { svg.setPointerCapture(e.pointerId); drag(e); svg.onpointermove = drag; };
    svg.onpointerup = svg.onpointercancel = () => { svg.onpointermove = null; };
    line.onkeydown = (e) => {
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: moments.length - 1, PageUp: at - 10, PageDown: at + 10 }[e.key];
      if (to !== undefined) { e.preventDefault(); set(to); }
    };
    const scroller = h('div.scroll.lane-scroll', {}, svg);
    fill(body, h('section.card.swim', {},
      h('div.lane-grid', { style: { 'grid-template-columns': label + 'px minmax(0, 1fr)' } }, h('div.lane-names', { style: { 'padding-top': axisHeight + 'px' } }, all.map((l) => h('div', { class: l.ack ? 'ack' : '', title: l.name }, h('span.mono', {}, l.ack ? l.name.slice(l.name.lastIndexOf('/') + 1) : l.name), l.ack && h('small.muted', {}, 'acknowledgments')))), scroller),
      h('p.legend-line', {}, [['record', 'committed'], ['data', 'written'], ['lock', 'locked'], ['notify', 'notification'], ['delete', 'deleted'], ['rollback', 'rolled back'], ['failure', 'observer failed']].map(([c, w]) => h('span', {}, h('i.key.' + c), w)), h('span.muted', {}, 'Moments are evenly spaced. Drag the line, or use the arrow keys.'))),
      facts,
      card('All stored versions', answer.more > 0 && h('p.muted', {}, `${num(answer.more)} earlier ones are left out; percctl history has all.`), grid([['Timestamp'], ['Column'], ['What happened']], [...answer.events].reverse().slice(0, 300).map((e) => [[h('span.mono.one', {}, e.ts), h('div.mono.muted', {}, clock(e.ts))], h('span.mono', {}, e.column), e.start_ts && e.primary ? [e.words, ' ', h('a', { href: link('txn', { primary: e.primary, start: e.start_ts }) }, 'transaction')] : e.words]), 'All stored versions')));
    set(at);
    scroller.scrollLeft = w;
  }

  const read = async () => {
    if (!params.table) { fill(body, empty('Write a table and a row key. Cells on every other page lead here.')); return; }
    try { answer = await api.get('api/row', { table: params.table, row: params.row }); } catch (e) { fill(body, h('p.card.bad', { role: 'alert' }, e.message)); return; }
    if (gone) return;
    all = lanes(answer.events);
    const set = new Set([answer.now]);
    for (const e of answer.events) for (const ts of [e.ts, e.kind === 'write' ? e.start_ts : 0]) if (ts && ts < answer.now) set.add(ts);
    moments = [...set].sort((a, b) => a - b);
    at = moments.length - 1;
    draw();
  };
  read();
  return {
    leave() { gone = true; },
    update(s) {
      if (s) fill(names, s.tables.slice(0, 200).map((t) => h('option', { value: t })));
      if (answer && body.clientWidth !== width) draw();
    },
  };
}
