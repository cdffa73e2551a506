// All runs, the ones that train first.
import {ago, chip, choice, count, duration, figures, h, tile, whole} from './base.js';
import {spark} from './chart.js';
import {listen, state} from './live.js';

const training = run => ['running', 'starting', 'pausing', 'hanging'].includes(run.state);
export const by_interest = (a, b) => training(b) - training(a) || b.updated - a.updated || a.name.localeCompare(b.name);
export const picked = new Set();

let filter = '', show = 'runs';

const cells = run => [
  h('span', null, h('input', {type: 'checkbox', 'aria-label': `compare ${run.name}`, checked: picked.has(run.id),
    onchange: event => { if (event.target.checked) picked.add(run.id); else picked.delete(run.id); tell_picked(); }})),
  h('div', {class: 'name'}, h('a', {href: `#/run/${run.id}`}, run.name), ' ', chip(run.state),
    run.note ? h('div', {class: 'soft small'}, run.note) : null),
  spark(run.spark),
  h('div', {class: 'num'}, h('span', {class: 'label'}, 'step'), whole(run.step), h('span', {class: 'soft'}, run.steps ? ` / ${whole(run.steps)}` : ''),
    run.steps ? h('div', {class: 'progress'}, h('i', {style: {width: `${Math.min(100, 100 * run.step / run.steps)}%`}})) : null),
  h('div', {class: 'right'}, h('span', {class: 'label'}, 'loss'), figures(run.loss)),
  h('div', {class: 'right'}, figures(run.best_validation?.loss)),
  h('div', {class: 'right'}, count(run.tokens_per_s), h('span', {class: 'soft'}, '/s')),
  h('div', {class: 'right soft'}, training(run) ? (run.eta === null ? '–' : duration(run.eta)) : ago(run.updated)),
];
let tell_picked = () => {};

export const overview = view => {
  const rows = new Map(), list = h('section', {class: 'card list', 'aria-label': 'Runs'}), tiles = h('dl', {class: 'tiles'});
  const compare = h('button', {type: 'button', onclick: () => { location.hash = `#/compare?runs=${[...picked].join(',')}`; }}, 'Compare');
  tell_picked = () => {
    compare.disabled = picked.size < 1;
    compare.textContent = picked.size ? `Compare ${picked.size}` : 'Compare';
  };
  const shown = () => [...state.runs.values()].filter(run =>
    (show === 'all' || (show === 'active' ? training(run) : !run.experiment)) && run.name.toLowerCase().includes(filter)).sort(by_interest);
  const draw_tiles = () => {
    const all = [...state.runs.values()], active = all.filter(training), speed = active.reduce((sum, run) => sum + (run.tokens_per_s ?? 0), 0);
    const sweeps = [...state.sweeps.values()], bad = all.filter(run => ['failed', 'hanging'].includes(run.state)).length;
    tiles.replaceChildren(tile('Training now', active.length, active.length ? `${count(speed)} tokens/s together` : 'nobody trains'),
      tile('Runs', all.filter(run => !run.experiment).length, `${all.filter(run => run.state === 'finished').length} finished, trials included`),
      tile('Sweeps', sweeps.length, `${sweeps.filter(sweep => sweep.state === 'running').length} running`),
      tile('Need attention', bad, bad ? 'failed or hanging' : 'all is well'));
  };
  const draw = () => {
    rows.clear();
    const runs = shown();
    list.replaceChildren(h('div', {class: 'run heading', 'aria-hidden': 'true'}, ['', 'run', 'curve', 'step', ['loss'], ['validation'], ['tokens'], ['left']].map(
      text => h('span', {class: Array.isArray(text) ? 'right' : ''}, text))));
    for (const run of runs) {
      const row = h('div', {class: 'run', data: {id: run.id}}, cells(run));
      rows.set(run.id, row);
      list.append(row);
    }
    if (!runs.length) list.append(h('p', {class: 'empty'}, state.runs.size ? 'No run matches.' : 'There are no runs yet. trireme train RECIPE --out runs/NAME makes one.'));
    draw_tiles();
    tell_picked();
  };
  view.replaceChildren(h('div', {class: 'head'}, h('h1', null, 'Runs'), h('span', {class: 'grow'}),
    h('div', {class: 'row'},
      h('input', {type: 'search', placeholder: 'Find a run', 'aria-label': 'Find a run', value: filter, oninput: event => { filter = event.target.value.toLowerCase(); draw(); }}),
      choice('Which runs', [['runs', 'Runs'], ['active', 'Training'], ['all', 'With trials']], show, value => { show = value; draw(); }), compare)),
    tiles, list);
  draw();
  // Many runs may write at once: rows are drawn at most four times a second.
  const dirty = new Set();
  let timer = 0;
  const refresh = () => {
    timer = 0;
    for (const id of dirty) {
      const row = rows.get(id);
      if (row && !row.contains(document.activeElement)) row.replaceChildren(...cells(state.runs.get(id)));
    }
    dirty.clear();
    draw_tiles();
  };
  const before = new Map([...state.runs].map(([id, run]) => [id, run.state]));
  return listen((kind, data) => {
    if (kind === 'all') return draw();
    if (kind !== 'run') return;
    const changed = before.get(data.run.id) !== data.run.state;
    before.set(data.run.id, data.run.state);
    if (changed) return draw();
    dirty.add(data.run.id);
    timer ||= setTimeout(refresh, 240);
  });
};
