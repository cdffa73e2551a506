// Charts: lines, stacked areas and sparks, drawn as SVG at the size they have on the screen.
import {color, h, number, s} from './base.js';

const finite = v => v !== null && Number.isFinite(v);

/// Round numbers from `low` to `high`, about `wanted` of them.
export const ticks = (low, high, wanted) => {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / Math.max(wanted, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(one => one >= rough * 0.999) ?? power * 10;
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return out;
};
const log_ticks = (low, high, wanted) => {
  const out = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); ++p) {
    for (const m of [1, 2, 5]) if (m * 10 ** p >= low * 0.999 && m * 10 ** p <= high * 1.001) out.push(m * 10 ** p);
  }
  if (out.length < 3) return ticks(low, high, wanted).filter(v => v > 0);
  const tens = out.filter(v => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9);
  return out.length > wanted + 2 && tens.length > 1 ? tens : out;
};

/// The mean around each point; gaps are stepped over.
export const smooth = (y, width) => {
  if (width < 1) return y;
  const out = new Array(y.length);
  for (let pass = 0, from = y; pass < 2; ++pass, from = out.slice()) {
    let sum = 0, n = 0, begin = 0, end = 0;
    for (let i = 0; i < y.length; ++i) {
      const reach = Math.min(width, Math.floor(i / 6));  // less near the beginning: a falling curve is not dragged behind
      while (end <= Math.min(i + reach, y.length - 1)) { if (finite(from[end])) { sum += from[end]; ++n; } ++end; }
      while (end > Math.min(i + reach, y.length - 1) + 1) { --end; if (finite(from[end])) { sum -= from[end]; --n; } }
      while (begin < i - reach) { if (finite(from[begin])) { sum -= from[begin]; --n; } ++begin; }
      out[i] = finite(from[i]) && n ? sum / n : null;
    }
  }
  return out;
};

const nearest = (xs, x) => {
  let a = 0, b = xs.length - 1;
  while (b - a > 1) { const m = (a + b) >> 1; if (xs[m] <= x) a = m; else b = m; }
  return Math.abs(xs[b] - x) < Math.abs(xs[a] - x) ? b : a;
};

/// What lies far above the rest would press the curve flat; it is cut off.
const range_of = (series, log) => {
  let values = [];
  for (const one of series) for (const y of one.y) if (finite(y) && (!log || y > 0)) values.push(y);
  if (!values.length) return [0, 1];
  values.sort((a, b) => a - b);
  const low = values[0], high = values[values.length - 1], usual = values[Math.floor((values.length - 1) * 0.985)];
  const top = !log && values.length > 40 && high - low > 3 * (usual - low) && usual > low ? usual + 0.15 * (usual - low) : high;
  if (log) return [low * 0.97, top * 1.03];
  const margin = (top - low || Math.abs(top) || 1) * 0.04;
  return [low >= 0 && low - margin < 0 ? 0 : low - margin, top + margin];
};

/// options: height, format (of y), x_format, x_label, log, zero, stacked, marks. series: {name, color, x, y, style}, where the
/// style is 'line', 'raw' (thin and faint) or 'dots'.
export class Chart {
  constructor(options) {
    this.options = {height: 210, format: v => number(v), x_format: v => Math.round(v).toLocaleString('en'), x_label: 'step', ...options};
    this.series = [];
    this.element = h('div', {class: 'chart', tabindex: 0, role: 'img', 'aria-label': this.options.label ?? 'chart'});
    this.element.addEventListener('pointermove', event => this.point_at(event));
    this.element.addEventListener('pointerleave', () => this.hide());
    this.element.addEventListener('blur', () => this.hide());
    this.element.addEventListener('keydown', event => this.walk(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }
  set(series, options) {
    this.series = series.filter(one => one.x.length);
    Object.assign(this.options, options);
    this.draw();
  }
  scales(width) {
    const {height, log, zero, stacked} = this.options;
    let [low, high] = stacked ? [0, this.top_of_stack()] : range_of(this.series.filter(one => one.style !== 'raw').concat(
      this.series.every(one => one.style === 'raw') ? this.series : []), log);
    if (zero) { low = Math.min(low, 0); high += 0.1 * (high - low); }
    if (!(high > low)) high = low + 1;
    let left = Infinity, right = -Infinity;
    for (const one of this.series) { left = Math.min(left, one.x[0]); right = Math.max(right, one.x[one.x.length - 1]); }
    if (!(right > left)) { left = Number.isFinite(left) ? left - 0.5 : 0; right = left + 1; }
    if (this.options.pad) { left -= this.options.pad; right += this.options.pad; }
    const unit = this.options.binary ? 1024 ** Math.floor(Math.log(Math.max(high, 1)) / Math.log(1024)) : 1;
    const y_ticks = log ? log_ticks(low, high, 4) : ticks(low / unit, high / unit, 4).map(v => v * unit);
    const labels = y_ticks.map(v => this.options.format(v));
    const box = {left: Math.max(...labels.map(t => t.length), 2) * 6.4 + 12, right: width - 14, top: 8, bottom: height - 24};
    const fx = v => box.left + (v - left) / (right - left) * (box.right - box.left);
    const to = v => log ? Math.log(v) : v;
    const fy = v => Math.min(Math.max(box.bottom - (to(v) - to(low)) / (to(high) - to(low)) * (box.bottom - box.top), -2000), 4000);
    return {low, high, left, right, y_ticks, labels, box, fx, fy};
  }
  top_of_stack() {
    const n = this.series[0]?.x.length ?? 0, sums = [];
    for (let i = 0; i < n; ++i) sums.push(this.series.reduce((sum, one) => sum + (one.y[i] ?? 0), 0));
    sums.sort((a, b) => a - b);
    const usual = sums[Math.floor((n - 1) * 0.97)] ?? 1, top = sums[n - 1] ?? 1;
    return (top > 3 * usual && usual > 0 ? usual * 1.3 : top) * 1.04;
  }
  draw() {
    const width = this.element.clientWidth;
    if (!width) return;
    this.element.querySelector('svg')?.remove();
    this.element.querySelector('.none')?.remove();
    if (!this.series.length) {
      this.element.prepend(h('p', {class: 'none'}, this.options.nothing ?? 'Nothing yet.'));
      return;
    }
    const scale = this.scale = this.scales(width), {box, fx, fy} = scale, id = `clip${Chart.next++}`;
    const picture = s('svg', {viewBox: `0 0 ${width} ${this.options.height}`, height: this.options.height, 'aria-hidden': 'true'},
      s('clipPath', {id}, s('rect', {x: box.left, y: box.top - 4, width: Math.max(box.right - box.left, 1), height: box.bottom - box.top + 4})));
    scale.y_ticks.forEach((v, i) => picture.append(
      s('line', {class: 'gridline', x1: box.left, x2: box.right, y1: fy(v), y2: fy(v)}),
      s('text', {x: box.left - 7, y: fy(v) + 3.5, 'text-anchor': 'end'}, scale.labels[i])));
    const x_ticks = this.options.x_ticks ?? ticks(scale.left, scale.right, Math.max(3, Math.floor((box.right - box.left) / 95)));
    for (const v of x_ticks) {
      const at = fx(v), text = this.options.x_format(v);
      const anchor = at + text.length * 3.2 > width ? 'end' : at - text.length * 3.2 < box.left ? 'start' : 'middle';
      picture.append(s('text', {x: at, y: box.bottom + 16, 'text-anchor': anchor}, text));
    }
    picture.append(s('line', {class: 'base', x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom}));
    const plot = s('g', {'clip-path': `url(#${id})`});
    for (const mark of this.options.marks ?? [])
      if (mark >= scale.left && mark <= scale.right) plot.append(s('line', {class: 'mark', x1: fx(mark), x2: fx(mark), y1: box.top, y2: box.bottom}));
    if (this.options.stacked) this.draw_stack(plot, scale); else for (const one of this.series) this.draw_line(plot, one, scale);
    picture.append(plot);
    this.element.prepend(picture);
    this.picture = picture;
    this.hide();
  }
  draw_line(plot, one, {fx, fy}) {
    if (one.style === 'dots') {
      one.x.forEach((x, i) => finite(one.y[i]) && plot.append(s('circle', {cx: fx(x), cy: fy(one.y[i]), r: 3.4, style: {fill: one.color, stroke: 'var(--card)', strokeWidth: 1.5}})));
      return;
    }
    let path = '', pen = false;
    for (let i = 0; i < one.x.length; ++i) {
      const y = one.y[i];
      if (!finite(y) || (this.options.log && y <= 0)) { pen = false; continue; }
      path += `${pen ? 'L' : 'M'}${fx(one.x[i]).toFixed(1)} ${fy(y).toFixed(1)}`;
      pen = true;
    }
    plot.append(s('path', {class: one.style === 'raw' ? 'raw' : 'line', d: path, style: {stroke: one.color, opacity: one.opacity ?? ''}}));
  }
  draw_stack(plot, {fx, fy}) {
    let below = this.series[0].x.map(() => 0);
    for (const one of this.series) {
      const above = below.map((v, i) => v + (finite(one.y[i]) ? one.y[i] : 0));
      const forth = one.x.map((x, i) => `${fx(x).toFixed(1)} ${fy(above[i]).toFixed(1)}`);
      const back = one.x.map((x, i) => `${fx(x).toFixed(1)} ${fy(below[i]).toFixed(1)}`).reverse();
      plot.append(s('path', {class: 'area', d: `M${forth.join('L')}L${back.join('L')}Z`, style: {fill: one.color}}));
      below = above;
    }
  }
  xs() {
    return this.series.find(one => one.style !== 'dots')?.x ?? this.series[0]?.x ?? [];
  }
  point_at(event) {
    if (!this.scale || !this.series.length) return;
    const {box, left, right} = this.scale, at = event.clientX - this.element.getBoundingClientRect().left;
    this.show(left + (at - box.left) / (box.right - box.left) * (right - left));
  }
  walk(event) {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key], xs = this.xs();
    if (!by || !xs.length) return;
    event.preventDefault();
    const stride = Math.max(1, Math.round(xs.length / 100));
    this.at = Math.min(Math.max((this.at ?? xs.length - 1) + by * stride, 0), xs.length - 1);
    this.show(xs[this.at]);
  }
  hide() {
    this.element.querySelector('.tip')?.remove();
    this.element.querySelector('.cross')?.remove();
  }
  show(x) {
    this.hide();
    const {fx, box, left, right} = this.scale, reach = (right - left) / 40 + 1e-9;
    const rows = [];
    let shown = null;
    for (const one of this.series) {
      if (one.quiet) continue;
      const i = nearest(one.x, x);
      if (Math.abs(one.x[i] - x) > reach && this.series.length > 1) continue;
      shown ??= one.x[i];
      rows.push([one, one.y[i]]);
    }
    if (shown === null) return;
    const place = Math.min(Math.max(fx(shown), box.left), box.right);
    this.picture.append(s('line', {class: 'cross', x1: place, x2: place, y1: box.top, y2: box.bottom}));
    rows.sort((a, b) => this.options.stacked ? 0 : (a[1] ?? Infinity) - (b[1] ?? Infinity));
    const tip = h('div', {class: 'tip'}, h('div', {class: 'soft'}, `${this.options.x_label} ${this.options.x_format(shown)}`),
      rows.slice(0, 12).map(([one, y]) => h('div', null, h('i', {style: {background: one.color}}), h('span', null, one.name),
        h('b', null, finite(y) ? this.options.format(y) : 'not finite'))));
    if (place > this.element.clientWidth / 2) tip.style.right = `${this.element.clientWidth - place + 10}px`; else tip.style.left = `${place + 10}px`;
    this.element.append(tip);
  }
}
Chart.next = 0;

export const legend = entries => h('ul', {class: 'legend'}, entries.map(([name, shade]) =>
  h('li', null, h('i', {style: {background: shade}}), h('span', null, name))));

/// A curve without axes, for lists.
export const spark = curve => {
  const picture = s('svg', {class: 'spark', viewBox: '0 0 100 30', preserveAspectRatio: 'none', 'aria-hidden': 'true'});
  const points = (curve?.x ?? []).map((x, i) => [x, curve.y[i]]).filter(([, y]) => finite(y));
  if (points.length < 2) return picture;
  const [low, high] = range_of([{y: points.map(p => p[1])}]), first = points[0][0], last = points[points.length - 1][0];
  const path = points.map(([x, y]) => `${((x - first) / (last - first || 1) * 100).toFixed(1)} ${Math.max(29 - (y - low) / (high - low || 1) * 28, 0).toFixed(1)}`).join('L');
  picture.append(s('path', {class: 'under', d: `M0 30L${path}L100 30Z`}), s('path', {d: `M${path}`}));
  return picture;
};

export {color};
