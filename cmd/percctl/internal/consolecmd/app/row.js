// Row: its versions as swim lanes over time, and what a snapshot reads at the line. The console
// computes what is shown; this file draws it.

import { h, fill, card, empty, link, num, clean, pill, table as grid } from './dom.js';
import * as api from './api.js';

const laneHeight = 46, axisHeight = 40, pad = 26;

// marks draw stored versions at p, in a lane whose middle is at mid.
const marks = {
  record: (p, mid) => h('circle', { cx: p, cy: mid, r: 4.5 }),
  data: (p, mid) => h('circle', { cx: p, cy: mid, r: 3.5 }),
  delete: (p, mid) => h('path', { d: `M${p - 4} ${mid - 4}l8 8m0 -8l-8 8` }),
  rollback: (p, mid) => h('path', { d: `M${p - 5} ${mid - 5}l10 10m0 -10l-10 10` }),
  lockonly: (p, mid) => h('rect', { x: p - 4, y: mid - 4, width: 8, height: 8 }),
  notify: (p, mid) => h('path', { d: `M${p - 5} ${mid - 12}h10l-5 -7z` }),
  failure: (p, mid) => [h('circle', { cx: p, cy: mid - 14, r: 6 }), h('text', { x: p, y: mid - 10.5, 'text-anchor': 'middle' }, '!')],
  lock: (p, mid, end) => [h('line', { x1: p, x2: end, y1: mid + 17, y2: mid + 17 }), h('path', { d: `M${p - 5} ${mid + 12}h10v8h-10zM${p - 3} ${mid + 12}v-3a3 3 0 016 0v3` })],
};

export default function row(main, params) {
  const tableName = h('input', { name: 'table', required: true, value: params.table ?? '', placeholder: 'table', 'aria-label': 'Table', list: 'tables', spellcheck: 'false' });
  const key = h('input', { name: 'row', required: true, value: params.row ?? '', placeholder: 'row key (%XX for bytes)', 'aria-label': 'Row key', spellcheck: 'false' });
  const names = h('datalist', { id: 'tables' });
  const body = h('div');
  fill(main, h('div.title', {}, h('h1', {}, 'Row'), params.table && h('span.mono.muted', {}, params.table + ' / ' + params.row)),
    h('form.search', { onsubmit: (e) => { e.preventDefault(); location.hash = link('row', { table: tableName.value.trim(), row: key.value }); } }, tableName, key, names, h('button.primary', {}, 'Show')), body);

  let answer = null, at = 0, gone = false, width = 0;

  function draw() {
    if (!answer) return;
    const { moments, lanes: all } = answer;
    width = body.clientWidth;
    const label = width < 620 ? 92 : 190;
    const room = Math.max(160, width - label - (width < 620 ? 34 : 42));
    const step = Math.max(30, (room - 2 * pad) / Math.max(moments.length - 1, 1));
    const w = Math.max(room, 2 * pad + step * (moments.length - 1)), x = (i) => (i < moments.length ? pad + step * i : w - 6);
    const height = axisHeight + all.length * laneHeight;
    const g = [], bars = [];
    all.forEach((l, i) => {
      const y = axisHeight + i * laneHeight, mid = y + laneHeight / 2;
      g.push(h('rect', { class: 'lane' + (i % 2 ? ' odd' : ''), x: 0, y, width: w, height: laneHeight }));
      for (const r of l.reads) {
        if (!r.shown.endsWith('value')) continue;
        const from = x(r.from), to = x(r.to), chars = Math.floor((to - from - 18) / 7), text = clean(r.text);
        const bar = h('g', { class: 'version' + (l.ack ? ' ack' : '') }, h('title', {}, r.words), h('rect', { x: from, y: mid - 13, width: Math.max(to - from - 2, 4), height: 26, rx: 5 }),
          chars > 2 && h('text', { x: from + 12, y: mid + 4 }, text.length > chars ? text.slice(0, chars - 1) + '…' : text));
        bars.push([bar, r]);
        g.push(bar);
      }
      for (const m of l.marks) {
        if (m.since < m.at) g.push(h('line', { class: 'span', x1: x(m.since), x2: x(m.at), y1: mid, y2: mid }));
        g.push(h('g', { class: 'mark ' + m.kind }, h('title', {}, m.words), marks[m.kind](x(m.at), mid, w - 6)));
      }
    });
    const refused = moments.findLastIndex((m) => m.refused);
    if (refused >= 0) g.push(h('rect', { class: 'refused', x: 0, y: axisHeight, width: x(refused) + step / 2, height: height - axisHeight }, h('title', {}, moments[refused].refused)));
    let shown = -Infinity;
    const ticks = moments.map((m, i) => {
      const p = pad + step * i;
      const far = p - shown > 92 && (i === moments.length - 1 || w - pad - p > 92 || i === 0);
      const last = i === moments.length - 1;
      if (last || far) shown = p;
      return [h('line', { class: 'tick', x1: p, x2: p, y1: axisHeight - 6, y2: height }), (last || far) && h('text', { class: 'tick-label', x: last ? p - 11 : Math.max(p, 4), y: axisHeight - 14, 'text-anchor': last ? 'end' : i === 0 ? 'start' : 'middle' }, m.time)];
    });
    const line = h('g.cursor', { tabindex: '0', role: 'slider', 'aria-label': 'Time of the snapshot', 'aria-valuemin': 0, 'aria-valuemax': moments.length - 1 }, h('line', { y1: 0, y2: height }), h('rect', { x: -7, y: axisHeight - 12, width: 14, height: 14, rx: 4 }));
    const svg = h('svg.lanes', { width: w, height, viewBox: `0 0 ${w} ${height}` }, ticks, g, line);
    const facts = h('div');
    const set = (i) => {
      at = Math.min(moments.length - 1, Math.max(0, i));
      const m = moments[at], there = (r) => r.from <= at && at < r.to;
      line.setAttribute('transform', `translate(${pad + step * at} 0)`);
      line.setAttribute('aria-valuenow', at);
      line.setAttribute('aria-valuetext', m.title);
      for (const [bar, r] of bars) bar.classList.toggle('read', there(r) && !m.refused);
      fill(facts, card(['A snapshot at ', m.title, ' reads'], h('p.mono.muted', {}, m.ts), m.refused ? h('p.bad', {}, m.refused) : grid([['Column'], ['Value'], ['Committed', 'n']], all.filter((l) => !l.ack).map((l) => {
        const r = l.reads.find(there);
        return [h('span.mono', {}, l.name), [h('span', { class: r?.shown.endsWith('value') ? 'mono value' : 'muted' }, r?.text ?? 'nothing'), ' ',
          r?.primary && h('a', { href: link('txn', { primary: r.primary, start: r.start }) }, pill('warn', 'after it resolves a lock, or waits for it'))], r?.committed ?? ''];
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
      h('div.lane-grid', { style: { 'grid-template-columns': label + 'px minmax(0, 1fr)' } }, h('div.lane-names', { style: { 'padding-top': axisHeight + 'px' } }, all.map((l) => h('div', { class: l.ack ? 'ack' : '', title: l.name }, h('span.mono', {}, l.short), l.ack && h('small.muted', {}, 'acknowledgments')))), scroller),
      h('p.legend-line', {}, [['record', 'committed'], ['data', 'written'], ['lock', 'locked'], ['notify', 'notification'], ['delete', 'deleted'], ['rollback', 'rolled back'], ['failure', 'observer failed']].map(([c, w]) => h('span', {}, h('i.key.' + c), w)), h('span.muted', {}, 'Moments are evenly spaced. Drag the line, or use the arrow keys.'))),
      facts,
      card('All stored versions', answer.more > 0 && h('p.muted', {}, `${num(answer.more)} earlier ones are left out; percctl history has all.`), grid([['Timestamp'], ['Column'], ['What happened']], [...answer.events].reverse().slice(0, 300).map((e) => [[h('span.mono.one', {}, e.ts), ' ', h('div.mono.muted', {}, e.time)], h('span.mono', {}, e.column), e.start_ts && e.primary ? [e.words, ' ', h('a', { href: link('txn', { primary: e.primary, start: e.start_ts }) }, 'transaction')] : e.words]), 'All stored versions')));
    set(at);
    scroller.scrollLeft = w;
  }

  const read = async () => {
    if (!params.table) { fill(body, empty('Write a table and a row key. Cells on every other page lead here.')); return; }
    try { answer = await api.get('api/row', { table: params.table, row: params.row }); } catch (e) { fill(body, h('p.card.bad', { role: 'alert' }, e.message)); return; }
    if (gone) return;
    at = answer.moments.length - 1;
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
