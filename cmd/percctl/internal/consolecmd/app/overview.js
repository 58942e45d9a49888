// Overview: what needs attention, and the last minutes.

import { h, fill, paint, card, pill, table, empty, command, icon, link, num, rate, duration, coarse, sh, clock, plural, cellLink, compact } from './dom.js';
import { strip, spark } from './charts.js';
import { acted, offer } from './actions.js';
import * as api from './api.js';

// cards are what needs attention, with the command that fixes it.
export function cards(s) {
  const all = [];
  const push = (kind, title, words, cmd, ...more) => all.push({ kind, title, words, cmd, more });
  if (s.silent) push('bad', 'Bigtable does not answer', `The last answer is ${duration(Math.round(s.answered_seconds))} old, and so is all that this page shows. ${s.failure}`);
  const oracle = s.oracle;
  if (oracle.row?.mode === 'served' && !s.oracle.leader) push('bad', 'No timestamps', ['No transaction can begin or commit. The oracle: ', s.facts.find((f) => f.name === 'oracle').words, '. Start a server. To do without servers, run percctl tso mode direct. Ages are by the clock of the console.'], 'percctl tso serve');
  const dead = s.transactions.filter((t) => t.stranded);
  if (dead.length) {
    const locks = dead.reduce((n, t) => n + t.locks, 0), first = dead[0], more = s.locks.more || s.locks.transactions > s.transactions.length;
    push('warn', `${more ? 'At least ' : ''}${plural(dead.length, 'transaction')} of dead clients ${dead.length === 1 ? 'holds' : 'hold'} ${plural(locks, 'lock')}`,
      ['Readers and writers of these cells resolve the locks. The oldest: ', first.verdict, '.'],
      dead.length === 1 ? sh('percctl', 'lock', 'resolve', '--transaction', first.primary, first.start_ts) : 'percctl lock resolve --all',
      h('a.button', { href: link('txn', { primary: first.primary, start: first.start_ts }) }, 'Look at the oldest'),
      dead.length === 1 ? offer('Resolve', { action: 'resolve', primary: first.primary, start_ts: String(first.start_ts) }) : offer('Resolve all', { action: 'resolve all' }));
  }
  for (const t of s.transactions.filter((t) => t.hanging).slice(0, 3)) {
    push('warn', `A client may hang: ${plural(t.locks, 'lock')} for ${t.age}`, [`Writers of these cells, and most readers, wait. Owner: ${t.owner}. Primary: `, cellLink(t.primary), '. Stop the client; or treat it as dead:'],
      sh('percctl', 'lock', 'resolve', '--transaction', t.primary, t.start_ts, '--owner-dead'), h('a.button', { href: link('txn', { primary: t.primary, start: t.start_ts }) }, 'Look at it'));
  }
  if (s.locks.unreadable) push('bad', `${plural(s.locks.unreadable, 'lock record')} cannot be read`, 'The check names the cells and says what is damaged.', 'percctl check --all');
  const letters = s.observers.filter((o) => o.dead_letters > 0);
  for (const o of letters.slice(0, 3)) {
    push('warn', `Observer ${o.observer} gave up on ${plural(o.dead_letters, 'change')}`, 'Read the errors, fix the cause, then replay the dead letters.', sh('percctl', 'notify', 'replay', '--observer', o.observer),
      h('a.button', { href: link('observers', { observer: o.observer }) }, 'Read the errors'), offer('Replay', { action: 'replay', observer: o.observer }));
  }
  for (const o of s.observers.filter((o) => o.observer && o.pending > 0 && o.live_workers === 0).slice(0, 3)) {
    push('bad', `Nobody runs observer ${o.observer}`, `${plural(o.pending, 'change')} of ${o.column} wait for it, the oldest for ${duration(o.lag_seconds)}. Start its workers.`, 'percctl observer list');
  }
  const failing = s.observers.filter((o) => o.failing > 0 && o.dead_letters === 0);
  if (failing.length) push('warn', `Runs fail on ${plural(failing.reduce((n, o) => n + o.failing, 0), 'change')}`, 'Workers retry them with growing delays: ' + failing.map((o) => o.observer).join(', ') + '.', 'percctl notify list', h('a.button', { href: link('observers') }, 'Look at the observers'));
  const run = s.gc.run;
  if (!s.gc.lease_holder && (run.phase === 'fence' || run.phase === 'collect')) push('warn', 'A garbage collection was interrupted', 'The next run continues where it stopped.', 'percctl gc run', offer('Run', { action: 'gc' }));
  for (const w of s.warnings) push('warn', 'Warning', w);
  return all;
}

// live are the checks whose findings the cards above have, and newer, by the command of the
// card. Before the first pass has read every row, the checks may know more.
const live = { lock: 'stranded locks', notify: 'observers', observer: 'observers', gc: 'garbage collection' };

// newer are the checks that the cards above contradict if they are ok.
const newer = (s) => new Set(cards(s).map((c) => live[c.cmd?.split(' ')[1]]));

// found are the cards of what percctl doctor found.
function found(health, s) {
  const report = health?.report, old = health?.at ? Math.round(Date.now() / 1000 - health.at) : 0;
  const has = new Set(['workers', 'connection', ...(s.scan.complete ? Object.values(live) : newer(s))]);
  const all = [];
  for (const c of report?.checks ?? []) {
    if (c.state === 'failed') all.push({ kind: 'warn', title: `The check of ${c.check} failed`, words: c.detail });
    for (const f of c.findings ?? []) {
      if (f.severity === 'note' || has.has(c.check)) continue;
      const cmd = /^(percctl|gcloud|cbt) /.test(f.fix);
      all.push({ kind: f.severity === 'error' ? 'bad' : 'warn', title: `${f.subject}: ${f.what}`, words: cmd ? f.why : `${f.why}. ${f.fix}`, cmd: cmd ? f.fix : '' });
    }
  }
  if (old > 60) for (const c of all) c.words = [c.words, ` (Checked ${duration(old)} ago.)`];
  return all;
}

function showCard(c) {
  return h('article.need.' + c.kind, {}, h('div.need-head', {}, icon(c.kind === 'info' ? 'note' : 'bad'), h('h3', {}, c.title)), h('p', {}, c.words), c.cmd && command(c.cmd), c.more?.some(Boolean) && h('div.actions', {}, c.more));
}

const groups = [['connection', /profile|permission|oracle|clock|connect|instance/], ['tables', /table|schema|famil|polic|adopt/], ['clients', /client|lock|garbage|gc|safe|worker token/], ['observers', /observer|dead letter|pending|worker/], ['data', /./]];

// checks are what percctl doctor found, by group.
function checks(health, again, since) {
  const head = h('div.head', {}, h('h2', {}, 'Checks'), h('span.muted', {}, health?.running ? 'running…' : health?.at ? 'made at ' + clock(health.at * 1e6, 0) : ''),
    h('button', { type: 'button', disabled: health?.running, onclick: again }, 'Check again'));
  if (health?.error) return h('section.card', {}, head, h('p.bad', {}, health.error));
  if (!health?.report) return h('section.card', {}, head, empty('The checks of percctl doctor run once after the first pass, or after a minute, with 100 rows of each table.'));
  const by = new Map(groups.map(([g]) => [g, []]));
  for (const c of health.report.checks) by.get(groups.find(([, re]) => re.test(c.check))[0]).push(c);
  const state = (c) => (c.state === 'ok' && since.has(c.check) ? 'found since' : c.state);
  const of = (state) => ({ ok: 'ok', note: 'note', skipped: 'note' }[state] ?? 'bad');
  return h('section.card', {}, head, h('div.checks', {}, [...by].filter(([, all]) => all.length).map(([g, all]) => h('div', {}, h('h3', {}, g), h('ul.plain', {}, all.map((c) =>
    h('li.check', { title: c.detail }, h('span.mark.' + of(state(c)), {}, icon(of(state(c)))), h('span', {}, c.check), h('span.muted.tail', {}, state(c)))))))),
    health.report.checks.flatMap((c) => c.findings ?? []).filter((f) => f.severity === 'note').slice(0, 20).map((f) => showCard({ kind: 'info', title: `${f.subject}: ${f.what}`, words: f.why, cmd: /^(percctl|gcloud|cbt) /.test(f.fix) && f.fix })));
}

export function transactions(list) {
  return table([['Transaction'], ['Age', 'n'], ['Locks', 'n'], ['Primary'], ['Locks would be'], ['Why']], list.map((t) => [
    h('a.mono.one', { href: link('txn', { primary: t.primary, start: t.start_ts }) }, t.start_ts), t.age, num(t.locks), cellLink(t.primary),
    pill(t.outcome === 'leave' ? 'ok' : t.outcome === 'unreadable' ? 'bad' : 'warn', t.outcome === 'leave' ? 'left' : t.outcome === 'roll forward' ? 'rolled forward' : t.outcome === 'roll back' ? 'rolled back' : t.outcome), h('span.why', {}, t.verdict)]), 'Transactions with locks');
}

export default function overview(main) {
  const client = (name) => (p) => p.clients?.[name] ?? null;
  const metrics = api.config().metrics;
  const charts = [
    metrics && strip('Transactions/s', [{ name: 'commits', of: client('commits'), color: 'c1' }, { name: 'conflicts', of: client('conflicts'), color: 'c3' }], rate),
    metrics && strip('Commit latency', [{ name: 'p50', of: client('commit_p50'), color: 'c4', format: duration }, { name: 'p99', of: client('commit_p99'), color: 'c2', format: duration }], coarse, 0.01),
    strip('Locks', [{ name: 'all', of: (p) => p.locks, color: 'c1' }, { name: 'of dead clients', of: (p) => p.stranded, color: 'c3' }], compact, 4),
    strip('Changes', [{ name: 'pending', of: (p) => p.pending, color: 'c2' }, { name: 'failing', of: (p) => p.failing, color: 'c3' }, { name: 'dead letters', of: (p) => p.dead, color: 'c5' }], compact, 4),
    strip('Age of the oldest', [{ name: 'pending change', of: (p) => p.lag, color: 'c4', format: duration }, { name: 'lock', of: (p) => p.oldest, color: 'c1', format: duration }], coarse, 1),
    strip('Oracle', [{ name: 'timestamps/s', of: (p) => p.rate, color: 'c4' }], rate, 10),
  ].filter(Boolean);
  const head = h('div'), needs = h('div.needs'), stats = h('div.stats'), locks = h('div'), health = h('div'), more = h('div');
  const without = h('div');
  fill(main, head, needs, stats, without, h('div.strips', {}, charts.map((c) => c.element)), locks, health, more);
  let made = null, asked = 0, gone = false, asking = false;
  const opened = Date.now();
  const doctor = async (again) => {
    if (asking || gone) return;
    asking = true;
    try { made = await (again ? api.post('api/doctor') : api.get('api/doctor')); } catch (e) { made = { error: e.message }; }
    asking = false;
    asked = Date.now();
  };
  // An action may have removed what the checks found.
  const old = () => made?.at && acted() > made.at;
  const last = (points, of) => points.slice(-90).map(of);
  return {
    leave() { gone = true; charts.forEach((c) => c.destroy()); },
    update(s, points) {
      if (!s) return;
      // The checks use up what the limits allow: the first pass comes first, unless it is long.
      if (made ? made.running && Date.now() - asked > 900 : s.scan.complete || Date.now() - opened > 60_000) doctor(false);
      if (old() && !made.running && Date.now() - asked > 900) doctor(true);
      paint(health, checks(made, () => doctor(true), newer(s)));
      const list = [...cards(s), ...found(made, s)].sort((a, b) => (b.kind === 'bad') - (a.kind === 'bad')), bad = list.filter((c) => c.kind === 'bad').length;
      paint(head, h('div.title', {}, h('h1', {}, list.length ? (list.length === 1 ? 'One thing needs attention' : `${list.length} things need attention`) : s.scan.complete ? 'Nothing needs attention' : 'Nothing found so far'),
        pill(bad ? 'bad' : list.length ? 'warn' : s.scan.complete ? 'ok' : 'note', bad ? 'broken' : list.length ? 'degraded' : s.scan.complete ? 'healthy' : 'first pass'), h('span.muted', {}, plural(s.tables.length, 'table') + ', ' + plural(s.workers.fresh, 'live client') + ', oracle ' + (s.oracle.leader ? 'served at ' + s.oracle.leader : s.oracle.row?.mode === 'served' ? 'without a server' : s.oracle.row?.mode + ' mode'))));
      paint(needs, list.slice(0, 8).map(showCard));
      const p = points[points.length - 1], c = p?.clients;
      const stat = (name, value, of, col, note) => h('div.stat', {}, h('div.stat-name', {}, name), h('div.stat-value', { class: String(value).length > 7 ? 'long' : '' }, value), h('div.stat-note', {}, note ?? ''), of && spark(last(points, of), col));
      const atLeast = s.locks.more ? '≥ ' : '';
      paint(stats,
        metrics && stat('Commits', c ? rate(c.commits) + '/s' : '–', client('commits'), 'c1', c ? rate(c.conflicts) + ' conflicts/s' : 'waiting for metrics'),
        metrics && stat('Commit p99', duration(c?.commit_p99), client('commit_p99'), 'c2', 'p50 ' + duration(c?.commit_p50)),
        stat('Locks', s.locks.more && !s.locks.locks ? 'unknown' : atLeast + num(s.locks.locks), (q) => q.locks, 'c1', 'of ' + plural(s.locks.transactions, 'transaction')),
        stat('Oldest lock', s.locks.locks ? atLeast + duration(s.locks.oldest_age_seconds) : s.locks.more ? 'unknown' : 'none', (q) => q.oldest, 'c3', s.locks.to_leave ? plural(s.locks.to_leave, 'live owner') : ''),
        stat('Pending changes', s.notifications.more && !s.notifications.pending ? 'unknown' : (s.notifications.more ? '≥ ' : '') + num(s.notifications.pending), (q) => q.pending, 'c2', num(s.notifications.failing) + ' failing'),
        stat('Observer lag', s.notifications.more && !p?.lag ? 'unknown' : duration(p?.lag ?? 0), (q) => q.lag, 'c4', plural(s.notifications.dead_letters, 'dead letter')),
        s.rates?.timestamps_per_second !== null && s.rates && stat('Oracle', rate(s.rates.timestamps_per_second) + '/s', (q) => q.rate, 'c4', 'timestamps, without ours'),
        stat('Age of safe point', s.gc.safe_point ? duration(s.gc.age_seconds) : 'none', null, '', s.gc.lease_holder ? 'collecting now' : s.gc.run.phase === 'none' ? 'never collected' : 'last run ' + s.gc.run.phase));
      paint(without, s.metrics_error ? h('p.hint', {}, icon('note'), s.metrics_error) : !metrics && h('p.hint', {}, icon('note'), h('span', {}, 'Commits, conflicts and latencies are known to clients alone. To see them, start the console with ', h('code', {}, '--metrics URL'), ' of a Prometheus or of clients.')));
      const oracle = charts[charts.length - 1];
      oracle.element.hidden = !points.some((q) => q.rate !== null); // in direct mode there is no counter
      for (const k of charts) if (!k.element.hidden) k.update(points);
      paint(locks, card('Transactions with locks', s.transactions.length ? [transactions(s.transactions.slice(0, 50)), s.locks.transactions > Math.min(50, s.transactions.length) && h('p.muted', {}, `The oldest ${Math.min(50, s.transactions.length)} of ${num(s.locks.transactions)}.`)] : empty(s.scan.complete ? 'No transaction holds a lock.' : 'No lock found so far.')));
      paint(more, h('details.card', {}, h('summary', {}, 'In words, and what cannot be seen from outside'), h('dl.facts', {}, s.facts.map((f) => [h('dt', {}, f.name), h('dd', { class: f.bad ? 'bad' : undefined }, f.words)])), h('ul', {}, s.not_visible.map((n) => h('li.muted', {}, n)))));
    },
  };
}
