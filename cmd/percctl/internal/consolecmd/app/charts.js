// Strip charts and heat maps.

import uPlot from './vendor/uplot.js';
import { h, clock, coarse } from './dom.js';

export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();

// seconds are steps of time that people count in.
const seconds = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000, 7776000, 31536000, 315360000];

// strip makes a strip chart of points: series are {name, of, color, format}.
export function strip(title, series, format, floor = 1) {
  const legend = h('div.legend', {}, series.map((s) => h('span', {}, h('i.swatch', { style: { 'background-color': 'var(--' + s.color + ')' } }), s.name, ' ', s.value = h('b', {}, '–'))));
  const box = h('div.plot');
  const element = h('figure.card.strip', {}, h('figcaption', {}, h('h3', {}, title), legend), box);
  let plot, seen = [], key;
  const options = () => ({
    width: Math.max(box.clientWidth, 120), height: 132, padding: [8, 22, 0, 0],
    cursor: { sync: { key: 'strips' }, points: { size: 6 }, y: false, drag: { x: false, y: false } },
    legend: { show: false },
    scales: { x: { time: true }, y: { range: (_, lo, hi) => [0, Math.max(floor, hi * 1.1 || floor)] } },
    axes: [
      { stroke: color('muted'), font: '11px ' + color('sans'), grid: { show: false }, ticks: { stroke: color('line'), size: 4 }, size: 24, space: 80, incrs: seconds.slice(9), values: (_, all) => all.map((v) => clock(v * 1e6, 0)) },
      { stroke: color('muted'), font: '11px ' + color('sans'), grid: { stroke: color('line'), width: 1 }, ticks: { show: false }, size: 52, space: 32, ...(format === coarse && { incrs: seconds }), values: (_, all) => all.map((v) => format(v)) },
    ],
    series: [{}, ...series.map((s) => ({ label: s.name, stroke: color(s.color), width: 1.75, fill: s.fill === false ? undefined : color(s.color) + '1f', points: { show: false }, spanGaps: false }))],
    hooks: { setCursor: [(u) => show(u.cursor.idx)] },
  });
  const show = (i) => {
    const p = seen[i ?? seen.length - 1];
    for (const s of series) {
      const v = p && s.of(p);
      s.value.textContent = v === null || v === undefined ? '–' : (s.format ?? format)(v);
    }
  };
  return {
    element,
    update(points) {
      seen = points;
      const data = [points.map((p) => p.t), ...series.map((s) => points.map((p) => s.of(p) ?? null))];
      const now = box.clientWidth + color('bg');
      if (now !== key && box.clientWidth) { // another size, another palette
        key = now;
        plot?.destroy();
        plot = new uPlot(options(), data, box);
      } else plot?.setData(data);
      show(plot?.cursor.idx);
    },
    destroy() { plot?.destroy(); },
  };
}

// spark draws a small line of values.
export function spark(values, name) {
  const all = values.filter((v) => v !== null && v !== undefined);
  const w = 120, height = 28, most = Math.max(...all, 1e-9);
  const points = values.map((v, i) => (v === null || v === undefined ? null : (i * w / Math.max(values.length - 1, 1)).toFixed(1) + ',' + (height - 2 - (v / most) * (height - 4)).toFixed(1))).filter(Boolean);
  return h('svg', { class: 'spark', viewBox: `0 0 ${w} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    points.length > 1 && h('path', { d: 'M' + points.join('L'), fill: 'none', stroke: 'var(--' + name + ')', 'stroke-width': '1.5', 'vector-effect': 'non-scaling-stroke' }));
}

// heat draws a heat map on a canvas: rows are ranges of keys, columns slots of time.
export function heat(canvas, slots, rows, of, slotSeconds, count, name) {
  const ratio = devicePixelRatio || 1;
  const w = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = w * ratio;
  canvas.height = height * ratio;
  const c = canvas.getContext('2d');
  c.scale(ratio, ratio);
  c.clearRect(0, 0, w, height);
  const last = slots.length ? slots[slots.length - 1].t : 0;
  const first = last - (count - 1) * slotSeconds;
  let most = 1;
  for (const s of slots) for (const v of of(s)) most = Math.max(most, v);
  const cw = w / count, ch = height / rows;
  for (const s of slots) {
    const x = Math.round((s.t - first) / slotSeconds) * cw;
    of(s).forEach((v, i) => {
      c.globalAlpha = v ? 0.18 + 0.82 * Math.sqrt(v / most) : 1;
      c.fillStyle = color(v ? name : 'well');
      c.fillRect(x + 0.5, i * ch + 0.5, Math.max(cw - 1, 1), Math.max(ch - 1, 1));
    });
  }
  const mark = ({ t, row }) => {
    c.globalAlpha = 1;
    c.strokeStyle = color('text');
    c.lineWidth = 2;
    c.strokeRect((t - first) / slotSeconds * cw + 1, row * ch + 1, cw - 2, ch - 2);
  };
  return { most, first, last, mark, at: (px, py) => ({ t: first + Math.floor(px / cw) * slotSeconds, row: Math.min(rows - 1, Math.max(0, Math.floor(py / ch))) }) };
}
