// Runs over each other: by step, tokens, time or FLOPs.
import {card, chip, choice, color, count, duration, figures, h, whole} from './base.js';
import {Chart, legend, smooth} from './chart.js';
import {get, listen, state} from './live.js';
import {by_interest, picked} from './overview.js';
import {toast} from './ask.js';

const kAxes = [['step', 'Step'], ['tokens', 'Tokens'], ['time', 'Time'], ['flops', 'FLOPs']];

/// y at x on a rising curve, between its points.
const between = (curve, x) => {
  const {x: xs, y: ys} = curve;
  if (!xs.length) return null;
  let a = 0, b = xs.length - 1;
  if (x <= xs[0]) return ys[0] * (xs[0] ? x / xs[0] : 1);
  while (b - a > 1) { const m = (a + b) >> 1; if (xs[m] <= x) a = m; else b = m; }
  return xs[b] === xs[a] ? ys[b] : ys[a] + (ys[b] - ys[a]) * (x - xs[a]) / (xs[b] - xs[a]);
};

/// Steps of a run on another axis. A token costs about 6 FLOPs a parameter, forward and backward.
const moved = (curves, xs, axis, run) => axis === 'step' ? xs : xs.map(x => axis === 'time' ? between(curves.elapsed, x)
  : between(curves.tokens, x) * (axis === 'flops' ? 6 * run.parameters : 1));

export const compare_view = (view, _, query) => {
  if (query.runs) { picked.clear(); for (const id of query.runs.split(',')) if (state.runs.has(id)) picked.add(id); }
  let axis = query.by ?? 'step', log = query.scale === 'log', smoothed = true, curves = {};
  const remember = () => history.replaceState(null, '', `#/compare?runs=${[...picked].join(',')}&by=${axis}${log ? '&scale=log' : ''}`);
  const chart = new Chart({height: 380, label: 'losses of the chosen runs', nothing: 'Choose runs below.'}), keys = h('div'), table = h('div', {class: 'scroll'});
  const finder = h('input', {type: 'search', placeholder: 'Find a run', 'aria-label': 'Find a run', oninput: () => draw_choices()}), choices = h('div', {class: 'card list'});
  const chosen = () => [...picked].map(id => state.runs.get(id)).filter(Boolean);

  const draw = () => {
    const runs = chosen(), few = runs.length <= 12;
    const series = [];
    runs.forEach((run, i) => {
      const one = curves[run.id];
      if (!one) return;
      const x = moved(one, one.loss.x, axis, run), name = run.name;
      if (few && smoothed) series.push({name, color: color(i), x, y: one.loss.y, style: 'raw', quiet: true});
      series.push({name, color: color(i), x, y: smoothed ? smooth(one.loss.y, Math.floor(x.length / 60)) : one.loss.y, opacity: few ? 1 : 0.55});
      if (few && one.validation.x.length) series.push({name: `${name}, validation`, color: color(i), x: moved(one, one.validation.x, axis, run), y: one.validation.y, style: 'dots'});
    });
    const format = {step: v => Math.round(v).toLocaleString('en'), tokens: count, time: duration, flops: v => v.toExponential(1)}[axis];
    chart.set(series, {log, x_format: format, x_label: {step: 'step', tokens: 'tokens', time: 'after', flops: 'FLOPs'}[axis]});
    keys.replaceChildren(few ? legend(runs.map((run, i) => [run.name, color(i)])) : h('p', {class: 'soft small'}, `${runs.length} runs`));
    const best = Math.min(...runs.map(run => run.best_validation?.loss ?? Infinity));
    table.replaceChildren(!runs.length ? '' : h('table', null,
      h('thead', null, h('tr', null, h('th', {class: 'text'}, 'run'), ['state', 'step', 'loss', 'best validation', 'tokens', 'tokens/s', 'a step', 'parameters', 'ranks'].map(text => h('th', {class: text === 'state' ? 'text' : ''}, text)))),
      h('tbody', null, runs.map(run => h('tr', {class: run.best_validation?.loss === best ? 'best' : ''}, h('td', {class: 'text'}, h('a', {href: `#/run/${run.id}`}, run.name)), h('td', {class: 'text'}, chip(run.state)),
        [whole(run.step), figures(run.loss), figures(run.best_validation?.loss), count(run.tokens), count(run.tokens_per_s), duration(run.step_seconds), count(run.parameters), run.ranks].map(text => h('td', null, text)))))));
  };
  const load = async () => {
    const missing = [...picked].filter(id => !curves[id]);
    for (let i = 0; i < missing.length; i += 100) Object.assign(curves, await get(`/api/compare?runs=${missing.slice(i, i + 100).join(',')}`));
    draw();
  };
  const changed = () => { remember(); load().catch(error => toast(error.message, true)); };
  const draw_choices = () => {
    const text = finder.value.toLowerCase(), runs = [...state.runs.values()].filter(run => run.name.toLowerCase().includes(text)).sort(by_interest);
    choices.replaceChildren(...runs.slice(0, 60).map(run => h('label', {class: 'row', style: {padding: '.45rem 1rem', borderTop: '1px solid var(--rule)'}},
      h('input', {type: 'checkbox', checked: picked.has(run.id), data: {id: run.id}, onchange: event => { if (event.target.checked) picked.add(run.id); else picked.delete(run.id); changed(); }}),
      h('span', {class: 'grow'}, run.name), chip(run.state), h('span', {class: 'soft small num'}, figures(run.loss)))));
    if (runs.length > 60) choices.append(h('p', {class: 'soft small', style: {padding: '0 1rem'}}, `and ${runs.length - 60} more: find them by name`));
  };
  view.replaceChildren(h('div', {class: 'head'}, h('h1', null, 'Compare'), h('span', {class: 'grow'}), h('div', {class: 'row'},
      choice('Axis', kAxes, axis, value => { axis = value; remember(); draw(); }),
      choice('Scale', [['lin', 'linear'], ['log', 'log']], log ? 'log' : 'lin', value => { log = value === 'log'; remember(); draw(); }),
      choice('Curve', [['smooth', 'smooth'], ['raw', 'raw']], 'smooth', value => { smoothed = value === 'smooth'; draw(); }))),
    h('div', {class: 'stack'}, card('Loss', 'FLOPs: 6 a token and parameter', keys, chart.element), h('section', {class: 'card'}, table),
      h('div', {class: 'row'}, h('h2', null, 'Runs'), h('span', {class: 'grow'}), finder), choices));
  draw_choices();
  changed();
  let timer = 0;
  const stop = listen((kind, data) => {
    if (kind === 'all') return draw_choices();
    if (kind !== 'run' || !picked.has(data.run.id)) return;
    timer ||= setTimeout(() => { timer = 0; for (const run of chosen()) if (run.state === 'running' || run.id === data.run.id) delete curves[run.id]; load().catch(() => {}); }, 2000);
  });
  return () => { stop(); clearTimeout(timer); };
};
