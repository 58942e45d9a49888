// Transaction: its cells, their states, and what a resolver would do.

import { h, fill, paint, card, pill, table, empty, command, link, num, clock, sh, cellLink, clean } from './dom.js';
import { offer } from './actions.js';
import { transactions } from './overview.js';
import * as api from './api.js';

// steps are what a transaction goes through, and where this one stands.
function steps(t) {
  const state = t.state, has = (k) => t.cells.some((c) => c.kind === k);
  const committed = state === 'committed', rolled = state === 'rolled back';
  return h('ol.steps', {},
    h('li.done', {}, h('b', {}, 'Prewrite'), h('span', {}, 'started ' + clock(t.start_ts))),
    committed ? h('li.done', {}, h('b', {}, 'Committed'), h('span', {}, 'at ' + clock(t.commit_ts))) : rolled ? h('li.failed', {}, h('b', {}, 'Rolled back'), h('span', {}, 'it can never commit')) : h('li.open', {}, h('b', {}, state === 'locked' ? 'Not committed' : 'Unknown'), h('span', {}, state === 'locked' ? 'the primary holds its lock' : 'the primary shows nothing')),
    h(t.locks.length ? 'li.open' : 'li.done', {}, h('b', {}, t.locks.length ? num(t.locks.length) + (t.locks.length === 1 ? ' lock left' : ' locks left') : 'No locks left'), h('span', {}, has('lock') ? 'see the cells below' : '')));
}

// cells are the cells around the primary, a box each, by table.
function cells(t) {
  const by = new Map();
  const at = (cell) => { if (!by.has(cell)) by.set(cell, { cell, kinds: [] }); return by.get(cell); };
  at(t.primary).primary = true;
  for (const c of t.cells) at(c.cell).kinds.push(c);
  for (const l of t.locks) { const c = at(l.cell); c.lock = l; }
  const tables = new Map();
  for (const c of by.values()) {
    const name = c.cell.split('/')[0];
    if (!tables.has(name)) tables.set(name, []);
    tables.get(name).push(c);
  }
  const state = (c) => {
    if (c.lock || c.kinds.some((k) => k.kind === 'lock')) return ['locked', 'warn'];
    const k = c.kinds.map((x) => x.kind);
    if (k.includes('write record') || k.includes('write')) return ['committed', 'ok'];
    if (k.some((x) => /lock-only/.test(x))) return ['lock-only', 'ok'];
    if (k.some((x) => /rollback/.test(x))) return ['rolled back', 'bad'];
    return c.kinds.length ? ['value', 'note'] : ['nothing', 'note'];
  };
  return h('div.cellmap', {}, [...tables].map(([name, list]) => h('div.celltable', {}, h('h3', {}, name), list.sort((a, b) => (b.primary ?? false) - (a.primary ?? false)).slice(0, 60).map((c) => {
    const [words, kind] = state(c);
    const [, row, column] = c.cell.split('/');
    return h('a.cell.' + kind, { href: link('row', { table: name, row }), title: c.kinds.map((k) => clean(k.words)).join('\n') }, h('span.mono.cellname', {}, row, h('span.muted', {}, ' / ', column)), h('span.cellstate', {}, c.primary && pill('note', 'primary'), pill(kind, words)));
  }), list.length > 60 && h('p.muted', {}, `and ${num(list.length - 60)} more`))));
}

// would is what a resolver would do, and with which locks.
function would(t) {
  const what = t.locks.length === 1 ? 'the lock of ' + t.locks[0].cell : t.locks.length ? `its ${num(t.locks.length)} locks` : 'its locks';
  const [verb, direction] = t.outcome.split(' ');
  return ['A resolver would', verb, what, direction].filter(Boolean).join(' ');
}

export default function txn(main, params) {
  const primary = h('input', { name: 'primary', required: true, value: params.primary ?? '', placeholder: 'table/row/family:column', 'aria-label': 'Primary cell', spellcheck: 'false' });
  const start = h('input', { name: 'start', required: true, value: params.start ?? '', placeholder: 'start timestamp', inputmode: 'numeric', 'aria-label': 'Start timestamp' });
  const body = h('div'), list = h('div');
  fill(main, h('div.title', {}, h('h1', {}, 'Transaction')), h('form.search', { onsubmit: (e) => { e.preventDefault(); location.hash = link('txn', { primary: primary.value.trim(), start: start.value.trim() }); } }, primary, start, h('button.primary', {}, 'Show')), body, list);
  let gone = false;
  const read = async () => {
    if (!params.primary || gone) return;
    let t;
    try { t = await api.get('api/txn', { primary: params.primary, start: params.start }); } catch (e) { if (!gone) paint(body, h('p.card.bad', { role: 'alert' }, e.message)); return; }
    if (gone) return;
    const kind = { leave: 'ok', finished: 'ok', unreadable: 'bad' }[t.outcome] ?? 'warn';
    const fixes = t.outcome === 'roll forward' || t.outcome === 'roll back';
    const trace = api.config().trace_url;
    paint(body,
      h('section.verdict.card.' + kind, {}, h('div.head', {}, h('h2', {}, fixes || t.outcome === 'leave' ? would(t) : t.outcome === 'finished' ? 'It has ended' : 'Nobody can tell'), pill({ committed: 'ok', 'rolled back': 'bad' }[t.state] ?? 'warn', t.state)), h('p.big', {}, t.verdict + '.'),
        steps(t), fixes && command(sh('percctl', 'lock', 'resolve', '--transaction', t.primary, t.start_ts)), fixes && h('div.actions', {}, offer('Resolve', { action: 'resolve', primary: t.primary, start_ts: String(t.start_ts) }))),
      card('', h('dl.facts', {}, h('dt', {}, 'primary'), h('dd', {}, cellLink(t.primary)), h('dt', {}, 'started'), h('dd', {}, t.start_time, h('span.muted', {}, ', ' + t.age + ' ago')), t.commit_ts && [h('dt', {}, 'committed'), h('dd', {}, t.commit_time)], t.words && t.owner_token && [h('dt', {}, 'owner'), h('dd', {}, t.words)],
        t.trace_id && [h('dt', {}, 'trace'), h('dd', {}, trace ? h('a.mono', { href: trace.replace('{trace_id}', encodeURIComponent(t.trace_id)), rel: 'noreferrer', target: '_blank' }, t.trace_id) : h('span.mono', {}, t.trace_id))])),
      card('Cells', cells(t), t.more > 0 && h('p.muted', {}, `The rows of ${num(t.more)} more locks were not read.`), h('p.muted', {}, 'These are the cells in the row of the primary, and those whose locks the scan has found. ', h('code', {}, sh('percctl', 'txn', 'explain', t.primary, t.start_ts)), ' searches all tables.')),
      t.cells.length ? card('Stored versions', table([['Timestamp', 'n'], ['Cell'], ['What happened']], t.cells.map((c) => [h('span.mono', {}, c.ts), cellLink(c.cell), c.words]), 'Stored versions')) : null);
  };
  read();
  const timer = setInterval(read, 5000);
  return {
    leave() { gone = true; clearInterval(timer); },
    update(s) {
      if (!s) return;
      paint(list, params.primary ? null : card('Transactions with locks', s.transactions.length ? transactions(s.transactions) : empty((s.scan.complete ? 'No transaction holds a lock.' : 'No lock found so far.') + ' To look at one that has ended, write its primary and its start timestamp.')));
    },
  };
}
