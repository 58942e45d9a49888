// Elements, texts and numbers. Everything that is shown goes through text nodes: stored
// bytes never become markup.

const svgNames = new Set(['svg', 'g', 'path', 'rect', 'circle', 'line', 'text', 'title', 'polygon', 'defs', 'marker', 'clipPath']);

// clean shows control characters and those that turn the direction of a text.
export function clean(s) {
  return String(s ?? '').replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]/g,
    (c) => '\\u' + c.codePointAt(0).toString(16).padStart(4, '0'));
}

// h makes an element: h('a.link', {href: '#/'}, 'text', child).
export function h(name, attributes, ...children) {
  const [tag, ...classes] = name.split('.');
  const svg = svgNames.has(tag);
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  if (classes.length) e.setAttribute('class', classes.join(' '));
  for (const [k, v] of Object.entries(attributes ?? {})) {
    if (v === undefined || v === null || v === false) continue;
    if (k.startsWith('on')) on(e, k.slice(2), v);
    else if (k === 'style') for (const [p, x] of Object.entries(v)) e.style.setProperty(p, x);
    else if (k === 'class') e.setAttribute('class', [e.getAttribute('class'), v].filter(Boolean).join(' '));
    else if (k === 'value') e.value = v;
    else e.setAttribute(k, v === true ? '' : clean(v));
  }
  add(e, children);
  return e;
}

// on sets the handler of an event. paint can replace it.
function on(e, type, f) {
  e.handlers ??= {};
  if (!(type in e.handlers)) e.addEventListener(type, (event) => e.handlers[type]?.(event));
  e.handlers[type] = f;
}

export function add(e, children) {
  for (const c of children.flat(Infinity)) {
    if (c === undefined || c === null || c === false || c === '') continue;
    e.append(c instanceof Node ? c : clean(c));
  }
  return e;
}

export function fill(e, ...children) {
  e.replaceChildren();
  return add(e, children);
}

// paint is fill for what is painted again and again: what stays keeps its element, with its
// focus and selection.
export function paint(e, ...children) {
  morph(e, add(document.createDocumentFragment(), children));
}

function morph(to, from) {
  const next = [...from.childNodes];
  next.forEach((n, i) => {
    const old = to.childNodes[i];
    if (!old) to.append(n);
    else if (old.nodeName !== n.nodeName || n.nodeName === 'CANVAS') old.replaceWith(n);
    else if (n.nodeType === Node.TEXT_NODE) { if (old.data !== n.data) old.data = n.data; }
    else {
      for (const a of [...old.attributes]) if (!n.hasAttribute(a.name) && a.name !== 'open') old.removeAttribute(a.name);
      for (const a of [...n.attributes]) if (a.name !== 'style' && old.getAttribute(a.name) !== a.value) old.setAttribute(a.name, a.value);
      for (const p of n.style ?? []) old.style.setProperty(p, n.style.getPropertyValue(p));
      for (const t of Object.keys(old.handlers ?? {})) if (!n.handlers?.[t]) old.handlers[t] = null;
      for (const [t, f] of Object.entries(n.handlers ?? {})) on(old, t, f);
      morph(old, n);
    }
  });
  while (to.childNodes.length > next.length) to.lastChild.remove();
}

// link is the address of a page with parameters.
export function link(page, params) {
  const q = new URLSearchParams(params ?? {}).toString();
  return '#/' + page + (q ? '?' + q : '');
}

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
export const num = (n) => (n === null || n === undefined ? '–' : whole.format(n));

export function rate(n) {
  if (n === null || n === undefined) return '–';
  if (n !== 0 && Math.abs(n) < 9.95) return n.toFixed(1);
  return n < 1e5 ? whole.format(n) : compact(n);
}

export function compact(n) {
  for (const [f, u] of [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) if (Math.abs(n) >= f) return trim(n / f) + u;
  return trim(n);
}

const trim = (x) => (Math.abs(x) >= 100 || Number.isInteger(x) ? x.toFixed(0) : x.toFixed(1).replace(/\.0$/, ''));

export function bytes(n) {
  if (n === null || n === undefined) return '–';
  for (const [f, u] of [[1e12, 'TB'], [1e9, 'GB'], [1e6, 'MB'], [1e3, 'kB']]) if (n >= f) return trim(n / f) + ' ' + u;
  return n + ' B';
}

// duration is a time in seconds for people.
export function duration(s) {
  if (s === null || s === undefined || Number.isNaN(s)) return '–';
  const a = Math.abs(s);
  if (a === 0) return '0 s';
  if (a < 1e-3) return trim(s * 1e6) + ' µs';
  if (a < 1) return trim(s * 1e3) + ' ms';
  if (a < 60) return trim(s) + ' s';
  if (a < 3600) return Math.floor(s / 60) + ' min ' + Math.floor(s % 60) + ' s';
  if (a < 86400) return Math.floor(s / 3600) + ' h ' + Math.floor((s % 3600) / 60) + ' min';
  return Math.floor(s / 86400) + ' d ' + Math.floor((s % 86400) / 3600) + ' h';
}

// coarse is a duration in one unit, for axes.
export function coarse(s) {
  for (const [f, u] of [[86400, ' d'], [3600, ' h'], [60, ' min'], [1, ' s']]) if (s >= f) return trim(s / f) + u;
  return s ? duration(s) : '0';
}

// sh quotes words for a shell: names may hold any character.
export const sh = (...words) => words.map((w) => (/^[\w@%+=:,./-]+$/.test(w) ? w : "'" + String(w).replaceAll("'", "'\\''") + "'")).join(' ');

export const plural = (n, thing) => num(n) + ' ' + thing + (n === 1 ? '' : 's');

// clock is a timestamp in microseconds as a time of day.
export function clock(us, fraction = 3) {
  if (!us) return '–';
  const d = new Date(us / 1000);
  const two = (n) => String(n).padStart(2, '0');
  const t = two(d.getHours()) + ':' + two(d.getMinutes()) + ':' + two(d.getSeconds());
  const micros = String(Math.floor(us % 1e6)).padStart(6, '0');
  return fraction ? t + '.' + micros.slice(0, fraction) : t;
}

// icon draws one of a few small pictures.
const icons = {
  overview: 'M3 12h4l2.5-7 5 14 2.5-7h4',
  row: 'M4 6h10M4 12h16M4 18h7',
  txn: 'M6 4v16M18 4v16M6 8h12M6 16h12',
  observers: 'M6 6h.01M18 6h.01M12 18h.01M7.5 7.5l3.5 9M16.5 7.5l-3.5 9M8 6h8',
  tables: 'M4 5h16v14H4zM4 10h16M10 10v9',
  ok: 'M5 12.5l4.5 4.5L19 7.5',
  bad: 'M12 7v6M12 17h.01M12 3l9.5 17h-19z',
  note: 'M12 11v6M12 7h.01M12 3a9 9 0 100 18 9 9 0 000-18z',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  run: 'M7 5l11 7-11 7z',
  sun: 'M12 8a4 4 0 100 8 4 4 0 000-8zM12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4',
};
export const icon = (name) => h('svg', { class: 'icon', viewBox: '0 0 24 24', 'aria-hidden': 'true' }, h('path', { d: icons[name] }));

// command shows a command with a button that copies it.
export function command(text) {
  return h('div.command', {}, h('code', {}, text), h('button.ghost', { type: 'button', title: 'Copy the command', 'aria-label': 'Copy: ' + text, onclick: async (e) => {
    const button = e.currentTarget;
    try { await navigator.clipboard.writeText(text); } catch { getSelection().selectAllChildren(button.previousSibling); return; }
    button.classList.add('done');
    setTimeout(() => button.classList.remove('done'), 1500);
  } }, icon('copy')));
}

export const card = (title, ...children) => h('section.card', {}, title && h('h2', {}, title), ...children);
export const pill = (kind, ...text) => h('span.pill.' + kind, {}, ...text);
export const empty = (...text) => h('p.empty', {}, ...text);

// table makes a table: columns are [title, kind], kind n for numbers.
export function table(columns, rows, caption) {
  return h('div.scroll', { tabindex: '0', role: 'region', 'aria-label': caption }, h('table', {},
    h('thead', {}, h('tr', {}, columns.map(([t, k]) => h('th', { scope: 'col', class: k }, t)))),
    h('tbody', {}, rows.map((cells) => h('tr', {}, cells.map((c, i) => h('td', { class: columns[i][1] }, c)))))));
}

// cellLink leads to the row of a cell, written table/row/family:qualifier.
export function cellLink(cell) {
  const [t, row] = cell.split('/');
  if (row === undefined) return h('span.mono', {}, cell);
  return h('a.mono', { href: link('row', { table: t, row }) }, parts(cell));
}

// parts lets a long name break after its slashes and colons.
export const parts = (name) => name.split(/(?<=[/:])/).map((p) => [p, h('wbr')]);
