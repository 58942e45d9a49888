// Observers: which columns they watch, what their runs write, and where they are behind.

import dagre from './vendor/dagre.js';
import { h, fill, paint, card, pill, table, empty, link, num, rate, duration, cellLink, plural, clean, parts } from './dom.js';
import { offer } from './actions.js';
import * as api from './api.js';

const short = (s, n) => (s.length > n ? s.slice(0, n - 1) + '…' : s);

// facts are the lines of the label at the edge from a column to its observer, each with its
// kind. Without metrics nobody knows how many runs there are.
function facts(o, runs) {
  return [
    o.pending > 0 && ['warn', `${num(o.pending)} pending, ${duration(o.lag_seconds)}`],
    runs > 0 && ['', `${rate(runs)} runs/s`],
    o.failing > 0 && ['bad', `${num(o.failing)} failing`],
    o.dead_letters > 0 && ['bad', plural(o.dead_letters, 'dead letter')],
  ].filter(Boolean);
}

const lineHeight = 15;

function graph(s) {
  const g = new dagre.graphlib.Graph({ multigraph: true });
  const narrow = innerWidth < 700;
  g.setGraph({ rankdir: narrow ? 'TB' : 'LR', nodesep: 18, ranksep: narrow ? 34 : 64, marginx: 8, marginy: 8 });
  g.setDefaultEdgeLabel(() => ({}));
  const node = (id, kind, lines, o) => { if (!g.hasNode(id)) g.setNode(id, { kind, lines, o, width: Math.min(230, 26 + Math.max(...lines.map((l) => l.length), o ? 14 : 0) * 7.4), height: o ? 54 : 46 }); };
  const column = (name) => node('c ' + name, 'column', name.split(/(?<=^[^/]*[/])/).map((l) => short(clean(l), 28)));
  const shown = s.observers.slice(0, 80);
  for (const o of shown) {
    column(o.column);
    if (!o.observer) continue;
    const id = 'o ' + o.column + ' ' + o.observer;
    node(id, 'observer', [short(clean(o.observer), 26)], o);
    const lines = facts(o, s.runs?.[o.observer]);
    g.setEdge('c ' + o.column, id, { o, lines, width: 12 + 7 * Math.max(0, ...lines.map(([, l]) => l.length)), height: 4 + lineHeight * lines.length, labelpos: 'c' }, 'in');
  }
  for (const e of s.edges) {
    const from = 'o ' + e.column + ' ' + e.observer;
    if (!g.hasNode(from)) continue;
    column(e.writes);
    g.setEdge(from, 'c ' + e.writes, {}, 'out');
  }
  // A narrow page has room for one group of connected columns beside another only by chance.
  const groups = narrow ? dagre.graphlib.alg.components(g).map((ids) => g.filterNodes((id) => ids.includes(id))) : [g];
  return h('div.scroll', { tabindex: '0', role: 'region', 'aria-label': 'Graph of observers' }, groups.map(drawing));
}

// drawing lays a graph out and draws it.
function drawing(g) {
  dagre.layout(g);
  const { width, height } = g.graph();
  const path = (pts) => 'M' + pts.map((p) => p.x.toFixed(1) + ' ' + p.y.toFixed(1)).join('L');
  return h('svg.graph', { style: { width: width + 'px', 'min-width': Math.round(width * 0.72) + 'px' }, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'Columns, the observers that watch them, and the columns that these write' },
    h('defs', {}, h('marker', { id: 'arrow', viewBox: '0 0 8 8', refX: '7', refY: '4', markerWidth: '7', markerHeight: '7', orient: 'auto' }, h('path', { d: 'M0 0L8 4L0 8z', class: 'arrow' }))),
    g.edges().map((e) => {
      const edge = g.edge(e), lines = edge.lines ?? [], kinds = lines.map(([k]) => k);
      return h('path', { class: 'edge ' + (['bad', 'warn'].find((k) => kinds.includes(k)) ?? ''), d: path(edge.points), 'marker-end': 'url(#arrow)' });
    }),
    g.edges().map((e) => {
      const { x, y, width, height, lines = [] } = g.edge(e);
      return lines.length > 0 && [h('rect', { class: 'edge-ground', x: x - width / 2 + 3, y: y - height / 2, width: width - 6, height }), lines.map(([kind, l], i) => h('text', { class: 'edge-label ' + kind, x, y: y + 4 + (i - (lines.length - 1) / 2) * lineHeight, 'text-anchor': 'middle' }, l))];
    }),
    g.nodes().map((id) => {
      const n = g.node(id), o = n.o, x = n.x - n.width / 2, y = n.y - n.height / 2;
      const state = o && (o.dead_letters || (o.pending && !o.live_workers) ? 'bad' : o.failing || o.lag_seconds > 600 ? 'warn' : 'ok');
      const words = o && (o.live_workers ? plural(o.live_workers, 'live worker') : 'nobody runs it');
      const body = h('g', { class: 'node ' + n.kind + (state ? ' ' + state : '') }, h('title', {}, o ? `${o.observer}: ${o.pending} pending, ${o.failing} failing, ${plural(o.dead_letters, 'dead letter')}, ${plural(o.live_workers, 'live worker')}` : id.slice(2)),
        h('rect', { x, y, width: n.width, height: n.height, rx: o ? 8 : 14 }),
        n.lines.map((l, i) => h('text', { x: n.x, y: o ? n.y - 5 : n.y + 4 + (i - (n.lines.length - 1) / 2) * 16, 'text-anchor': 'middle', class: i === n.lines.length - 1 ? 'name' : 'words' }, l)),
        o && h('text', { x: n.x, y: n.y + 14, 'text-anchor': 'middle', class: 'words' }, words));
      if (!o) return body;
      const a = document.createElementNS('http://www.w3.org/2000/svg', 'a');
      a.setAttribute('href', link('observers', { observer: o.observer }));
      a.append(body);
      return a;
    }));
}

export default function observers(main, params) {
  const top = h('div'), list = h('div'), dead = h('div');
  fill(main, h('div.title', {}, h('h1', {}, 'Observers'), params.observer && h('span', {}, pill('note', params.observer), ' ', h('a', { href: link('observers') }, 'show all'))), top, list, dead);
  let before = '', letters = null, at = 0;
  const read = async () => {
    at = Date.now();
    try { letters = await api.get('api/letters'); } catch (e) { letters = []; paint(dead, card('Dead letters', h('p.bad', {}, e.message))); return; }
    const mine = letters.filter((d) => !params.observer || d.observer === params.observer);
    paint(dead, card('Dead letters' + (mine.length ? ' (' + num(mine.length) + ')' : ''), mine.length ? [
      params.observer && h('div.actions', {}, offer('Replay all of ' + params.observer, { action: 'replay', observer: params.observer })),
      table([['Cell'], ['Observer'], ['Parked'], ['Attempts', 'n'], ['Error'], ['']], mine.slice(0, 200).map((d) => [cellLink(d.cell), d.observer, h('time.mono', {}, d.parked_time.slice(0, 19).replace('T', ' ')), num(d.attempts), h('span.why.bad', {}, d.error), offer('Replay', { action: 'replay', cell: d.cell, observer: d.observer })]), 'Dead letters'),
      mine.length > 200 && h('p.muted', {}, `The first 200 of ${num(mine.length)}; percctl notify list --dead has all.`)] : empty('No dead letters.')));
  };
  read();
  return {
    update(s) {
      if (!s) return;
      const key = JSON.stringify([s.observers.map((o) => [o.column, o.observer, o.pending, o.failing, o.dead_letters, o.live_workers, Math.round(o.lag_seconds / 2)]), s.edges, s.runs, innerWidth]);
      if (key !== before) {
        before = key;
        const all = s.observers.filter((o) => !params.observer || o.observer === params.observer);
        const seen = { ...s, observers: all };
        paint(top, card('', all.length ? [graph(seen), h('p.legend-line', {}, h('span', {}, h('i.swatch.round'), 'column'), h('span', {}, h('i.swatch.square'), 'observer'), h('span', {}, 'At an arrow to an observer: what waits there, and for how long; its runs, if metrics tell; what fails. An arrow from an observer: a column that its runs have written, as far as a sample of rows shows.')), s.observers.length > 80 && h('p.muted', {}, `The graph has the first 80 of ${num(s.observers.length)} observers.`)] : empty('No column is observed. percctl observer add registers an observer.')));
        paint(list, all.length ? card('', table([['Column'], ['Observer'], ['Kind', 'wide'], ['Pending', 'n'], ['Failing', 'n'], ['Lag', 'n'], ['Dead letters', 'n'], ['Live workers', 'n wide']], all.slice(0, 300).map((o) => [h('span.mono', {}, parts(o.column)), o.observer ? h('a', { href: link('observers', { observer: o.observer }) }, o.observer) : '–', o.kind, num(o.pending), o.failing ? h('b.bad', {}, num(o.failing)) : '0', o.oldest_ts ? duration(o.lag_seconds) : '–', o.dead_letters ? h('b.bad', {}, num(o.dead_letters)) : '0', o.live_workers ? num(o.live_workers) : h('b.bad', {}, '0')]), 'Observers')) : null);
      }
      if (Date.now() - at > 10000) read();
    },
  };
}
