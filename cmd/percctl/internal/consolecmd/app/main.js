// The console's page: what is shown is chosen by the part of the address after #.

import { h, fill, paint, icon, link, rate, bytes, duration, num, plural } from './dom.js';
import * as api from './api.js';
import overview from './overview.js';
import row from './row.js';
import txn from './txn.js';
import observers from './observers.js';
import tables from './tables.js';

const pages = { '': overview, row, txn, observers, tables };
const links = [['', 'Overview', 'overview'], ['row', 'Row', 'row'], ['txn', 'Transaction', 'txn'], ['observers', 'Observers', 'observers'], ['tables', 'Tables', 'tables']];

const nav = document.getElementById('nav'), bar = document.getElementById('bar'), main = document.getElementById('main'), foot = document.getElementById('foot');
const keptPoints = 600;

let page, here, state = null, points = [], failure = '', heard = 0; // when the console answered last

function theme(next) {
  const root = document.documentElement;
  if (next) {
    localStorage.setItem('theme', next);
  }
  const t = localStorage.getItem('theme');
  if (t) root.dataset.theme = t; else delete root.dataset.theme;
}

function dark() {
  return (document.documentElement.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
}

function frame() {
  fill(nav, links.map(([name, title, i], n) => h('a', { href: link(name), id: 'nav-' + name, title: `${title} (key ${n + 1})` }, icon(i), h('span', {}, title))));
  fill(foot, h('button.ghost', { type: 'button', title: 'Light or dark (key t)', 'aria-label': 'Light or dark', onclick: turn }, icon('sun')));
}

function turn() {
  theme(dark() ? 'light' : 'dark');
  shown();
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  const name = path in pages ? path : '', unknown = path !== name;
  const params = Object.fromEntries(new URLSearchParams(query ?? ''));
  for (const [n] of links) {
    const a = document.getElementById('nav-' + n);
    if (n === name) a.setAttribute('aria-current', 'page'); else a.removeAttribute('aria-current');
  }
  document.title = links.find(([n]) => n === name)[1] + ' · percctl console';
  page?.leave?.();
  if (here !== undefined) scrollTo(0, 0);
  here = name;
  main.replaceChildren();
  page = unknown ? null : pages[name](main, params);
  if (unknown) fill(main, h('p.empty', {}, `There is no page ${path}. `, h('a', { href: link('') }, 'Go to the overview')));
  if (state) shown();
}

// status is the line that is on every page: what is shown, how old it is, what it costs.
function status() {
  if (!state) {
    paint(bar, failure ? h('span.bad', {}, icon('bad'), failure) : h('span.muted', {}, 'Connecting…'));
    return;
  }
  const s = state.scan, answered = state.answered_seconds + (Date.now() - heard) / 1000, silent = state.silent || failure;
  const age = s.complete ? ['every row read within ', h('b', {}, duration(s.oldest_seconds))] : ['first pass under way, ', h('b', {}, plural(s.rows, 'row')), ' so far'];
  paint(bar,
    h('span.where', {}, h('b', {}, state.project), h('span.muted', {}, ' / '), h('b', {}, state.instance)),
    silent || state.failure ? h('span.bad', {}, icon('bad'), `no answer for ${duration(Math.round(answered))}`, (failure || state.failure) && ': ' + (failure || state.failure))
      : h('span.live', { title: 'The last answer of Bigtable' }, h('i.dot'), 'live, ', duration(Math.round(answered)), ' old'),
    h('span.cost', { title: 'One scanner reads for all viewers. It stops when nobody looks. Limits: --max-requests, --max-bytes.' }, age,
      ' · ', h('b', {}, rate(s.requests_per_second)), ` of ${num(s.max_requests_per_second)} requests/s · `, h('b', {}, bytes(Math.round(s.bytes_per_second))), ` of ${bytes(s.max_bytes_per_second)}/s`));
}

// shown are the points with that of now.
const shown = () => page?.update?.(state, state ? [...points, state.now] : points);

async function poll() {
  try {
    const last = points.length ? points[points.length - 1].t : 0;
    const next = await api.get('api/state', { since: last });
    if (failure) await api.load(); // the console may have started again, with another token
    points = points.concat(next.points).slice(-keptPoints);
    state = next;
    heard = Date.now();
    failure = '';
    shown();
  } catch (e) {
    failure = e.message;
  }
  status();
  setTimeout(poll, document.hidden ? 10000 : api.config().refresh * 1000);
}

addEventListener('hashchange', () => { route(); main.focus({ preventScroll: true }); });
addEventListener('keydown', (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest?.('input, textarea, select, dialog')) return;
  const n = Number(e.key) - 1;
  if (links[n]) location.hash = link(links[n][0]);
  else if (e.key === 't') turn();
  else if (e.key === '/') { const i = main.querySelector('input'); if (i) { e.preventDefault(); i.focus(); } }
});
let resized;
addEventListener('resize', () => { clearTimeout(resized); resized = setTimeout(shown, 100); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => state && shown());

theme();
frame();
status();
try { await api.load(); } catch (e) { failure = e.message; }
route();
await poll();
document.documentElement.dataset.ready = '1';
