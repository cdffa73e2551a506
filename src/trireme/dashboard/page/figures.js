// Pictures that are no curves: ranks and experts as heat maps, a pipeline as a Gantt chart, settings as parallel coordinates.
import {color, duration, h, number, s} from './base.js';
import {ticks} from './chart.js';

const finite = v => v !== null && v !== undefined && Number.isFinite(v);
const mix = share => `color-mix(in oklab, var(--c1) ${Math.round(100 * share)}%, var(--wash))`;

/// Rows are ranks, columns the last steps; the colour says how long.
export const heat_map = (ranks, column, slow) => {
  const steps = ranks.reduce((most, rank) => rank.steps.length > most.length ? rank.steps : most, []);
  const values = ranks.flatMap(rank => rank[column]).filter(finite).sort((a, b) => a - b);
  if (!values.length) return h('p', {class: 'none'}, 'The ranks have written nothing yet.');
  const low = values[0], high = values[Math.floor((values.length - 1) * 0.99)] || 1;
  const share = v => Math.min(Math.max((v - low) / (high - low || 1), 0), 1);
  const map = h('div', {class: 'heat', role: 'img', 'aria-label': 'step times of every rank'});
  for (const rank of ranks) {
    const by_step = new Map(rank.steps.map((step, i) => [step, rank[column][i]]));
    map.append(h('span', {class: slow.has(rank.rank) ? 'slow' : ''}, `rank ${rank.rank}`),
      h('div', {class: 'cells'}, steps.map(step => {
        const v = by_step.get(step);
        return h('i', {title: `rank ${rank.rank}, step ${step}: ${duration(v)}`, style: finite(v) ? {background: mix(share(v))} : {}});
      })));
  }
  return h('div', null, map, h('div', {class: 'scale'}, duration(low),
    h('i', {style: {background: `linear-gradient(90deg, ${mix(0)}, ${mix(1)})`}}), duration(high),
    h('span', null, `steps ${steps[0]} to ${steps[steps.length - 1]}`)));
};

/// Rows are layers, columns experts; the colour says how many tokens an expert got beside the mean of its layer.
export const expert_map = layers => {
  const map = h('div', {class: 'heat', role: 'img', 'aria-label': 'tokens of every expert, layer by layer'}), top = 2;
  for (const layer of layers) {
    const mean = layer.tokens.reduce((a, b) => a + b, 0) / layer.tokens.length || 1;
    map.append(h('span', null, layer.name), h('div', {class: 'cells'}, layer.tokens.map((tokens, expert) =>
      h('i', {title: `${layer.name}, expert ${expert}: ${tokens} tokens, ${number(tokens / mean, 3)} times the mean`, style: {background: mix(Math.min(tokens / mean / top, 1))}}))));
  }
  return h('div', null, map, h('div', {class: 'scale'}, 'no tokens', h('i', {style: {background: `linear-gradient(90deg, ${mix(0)}, ${mix(1)})`}}), 'twice the mean'));
};

const kSpans = {forward: ['forward', 'var(--c0)'], backward: ['backward', 'var(--c2)'], input: ['backward, input', 'var(--c2)'],
                weight: ['backward, weights', 'var(--c4)'], recompute: ['recomputation', 'var(--c5)'], both: ['forward and backward', 'var(--c3)'],
                update: ['optimizer', 'var(--c1)'], other: ['other', 'var(--c7)']};

/// A step of a pipeline as it ran: a row a rank.
export const gantt = pipeline => {
  const box = h('div', {class: 'chart', role: 'img', 'aria-label': 'the last step of the pipeline'});
  const row = 30, height = pipeline.ranks.length * row + 30;
  const seen = new Set(pipeline.ranks.flat().map(span => span[1]));
  const draw = () => {
    const width = box.clientWidth;
    if (!width) return;
    const left = 54, fx = t => left + t / pipeline.seconds * (width - left - 6);
    const picture = s('svg', {viewBox: `0 0 ${width} ${height}`, height, 'aria-hidden': 'true'});
    for (const t of ticks(0, pipeline.seconds, Math.max(2, width / 110))) {
      picture.append(s('line', {class: 'gridline', x1: fx(t), x2: fx(t), y1: 0, y2: height - 24}),
                     s('text', {x: Math.min(fx(t), width - 22), y: height - 8, 'text-anchor': 'middle'}, duration(t)));
    }
    pipeline.ranks.forEach((spans, rank) => {
      picture.append(s('text', {x: 0, y: rank * row + 19}, `rank ${rank}`));
      for (const [label, kind, begin, end] of spans) {
        const wide = Math.max(fx(end) - fx(begin), 0.8);
        picture.append(s('rect', {x: fx(begin), y: rank * row + 4, width: wide, height: row - 8, rx: 2.5, style: {fill: kSpans[kind]?.[1] ?? color(7), opacity: kind === 'input' ? 0.75 : 0.92}},
          s('title', null, `${label}: ${duration(end - begin)}, from ${duration(begin)}`)));
        if (wide > label.length * 6.5 + 6)
          picture.append(s('text', {x: fx(begin) + wide / 2, y: rank * row + 19, 'text-anchor': 'middle', style: {fill: 'var(--card)', pointerEvents: 'none'}}, label));
      }
    });
    box.replaceChildren(picture);
  };
  new ResizeObserver(draw).observe(box);
  return [h('ul', {class: 'legend'}, [...seen].map(kind => h('li', null, h('i', {style: {background: kSpans[kind]?.[1] ?? color(7)}}), kSpans[kind]?.[0] ?? kind))), box];
};

/// Where on its axis a value lies, in [0, 1].
const place_on = (parameter, value) => {
  if (value === undefined) return null;
  if (!parameter.number) {
    const at = parameter.choices.indexOf(value);
    return at < 0 ? null : parameter.choices.length === 1 ? 0.5 : at / (parameter.choices.length - 1);
  }
  const v = parameter.log ? Math.log(+value) : +value, low = parameter.log ? Math.log(parameter.low) : parameter.low,
        high = parameter.log ? Math.log(parameter.high) : parameter.high;
  return high > low ? Math.min(Math.max((v - low) / (high - low), 0), 1) : 0.5;
};

/// A line a trial through its settings to its loss; the better, the stronger.
export const parallel_coordinates = (sweep, open) => {
  const box = h('div', {class: 'chart', role: 'img', 'aria-label': 'settings and losses of all trials'});
  const trials = sweep.list.filter(trial => trial.losses.some(([, loss]) => finite(loss)));
  const last = trial => trial.losses.filter(([, loss]) => finite(loss)).at(-1)[1];
  if (!trials.length) return h('p', {class: 'none'}, 'No trial has been evaluated yet.');
  const losses = trials.map(last).sort((a, b) => a - b), low = losses[0], high = losses[Math.ceil((losses.length - 1) * 0.9)];
  const badness = loss => Math.min(Math.max((loss - low) / (high - low || 1), 0), 1);
  const height = 270, top = 30, bottom = height - 22;
  const draw = () => {
    const width = box.clientWidth;
    if (!width) return;
    const axes = [...sweep.parameters.map(parameter => ({name: parameter.key, parameter})), {name: 'loss'}];
    const left = sweep.parameters[0]?.number === false ? 60 : 44, right = width - 56, fx = i => axes.length < 2 ? left : left + i * (right - left) / (axes.length - 1);
    const fy = unit => bottom - unit * (bottom - top);
    const picture = s('svg', {viewBox: `0 0 ${width} ${height}`, height});
    for (const trial of [...trials].sort((a, b) => last(b) - last(a))) {
      const points = axes.map((axis, i) => {
        const unit = axis.parameter ? place_on(axis.parameter, trial.setting[axis.name]) : badness(last(trial));
        return unit === null ? null : [fx(i), fy(unit)];
      });
      let path = '';
      points.forEach((point, i) => {
        if (!point) return;
        const before = points[i - 1], middle = before && (before[0] + point[0]) / 2;
        path += before ? `C${middle} ${before[1]} ${middle} ${point[1]} ${point[0]} ${point[1]}` : `M${point[0]} ${point[1]}`;
      });
      const bad = badness(last(trial)), best = trial.trial === sweep.best?.trial;
      const line = s('path', {d: path, style: {fill: 'none', stroke: best ? 'var(--c1)' : 'var(--c0)', strokeWidth: best ? 3 : 1.7, opacity: best ? 1 : 0.85 - 0.65 * bad, cursor: 'pointer'}},
        s('title', null, `trial ${trial.trial}: loss ${number(last(trial))}\n` + Object.entries(trial.setting).map(([k, v]) => `${k} = ${v}`).join('\n')));
      line.addEventListener('click', () => open(trial));
      picture.append(line);
    }
    axes.forEach((axis, i) => {
      const ends = !axis.parameter ? [number(low, 3), `${number(high, 3)}${losses.at(-1) > high ? '+' : ''}`]
        : [number(axis.parameter.low, 3), number(axis.parameter.high, 3)];
      const anchor = i === 0 ? 'start' : i === axes.length - 1 ? 'end' : 'middle', at = i === 0 ? 0 : i === axes.length - 1 ? width : fx(i);
      const fits = Math.max(4, Math.floor(((right - left) / Math.max(axes.length - 1, 1) - (i === 0 ? 0 : 8)) / 6.8));
      const short = axis.name.length > fits ? axis.name.split('.').at(-1) : axis.name;
      picture.append(s('line', {x1: fx(i), x2: fx(i), y1: top, y2: bottom, style: {stroke: 'var(--faint)', strokeWidth: 1.2}}),
        s('text', {x: at, y: 11, 'text-anchor': anchor, style: {fill: 'var(--ink)', fontWeight: 600}}, short.length > fits ? `${short.slice(0, fits - 1)}…` : short, s('title', null, axis.name)));
      const label = (unit, text) => picture.append(s('text', {class: 'halo', x: fx(i) + (i === axes.length - 1 ? 6 : -6), y: fy(unit) + 4, 'text-anchor': i === axes.length - 1 ? 'start' : 'end'}, text));
      if (axis.parameter && !axis.parameter.number) axis.parameter.choices.forEach((text, n, all) => label(all.length === 1 ? 0.5 : n / (all.length - 1), text));
      else ends.forEach((text, n) => label(n, text));
    });
    box.replaceChildren(picture);
  };
  new ResizeObserver(draw).observe(box);
  return box;
};
