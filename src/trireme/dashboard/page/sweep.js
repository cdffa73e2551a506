// Sweeps, one sweep, and the queue of trials.
import {ago, card, chip, color, figures, h, number, tile, whole} from './base.js';
import {Chart} from './chart.js';
import {parallel_coordinates} from './figures.js';
import {get, listen, state} from './live.js';
import {ask_for, toast} from './ask.js';

const setting_text = setting => Object.entries(setting ?? {}).map(([key, value]) => `${key.split('.').at(-1)} ${value}`).join(', ');

const sweep_buttons = sweep => {
  const act = (action, text, kind) => h('button', {type: 'button', class: kind, data: {action}, disabled: !sweep.can?.[action],
    onclick: () => ask_for(`/api/sweeps/${sweep.id}/actions/${action}`)}, text);
  if (!Object.values(sweep.can ?? {}).some(Boolean)) return [];
  return [sweep.can.resume ? act('resume', 'Resume', 'main') : act('pause', 'Pause', 'main'), act('stop', 'Stop', 'danger')];
};

export const sweeps_view = view => {
  const draw = () => {
    const all = [...state.sweeps.values()].sort((a, b) => (b.created ?? 0) - (a.created ?? 0));
    view.replaceChildren(h('div', {class: 'head'}, h('h1', null, 'Sweeps')), all.length ? h('div', {class: 'grid'}, all.map(sweep =>
      h('section', {class: 'card'}, h('header', null, h('h2', null, h('a', {href: `#/sweep/${sweep.id}`}, sweep.name)), chip(sweep.state), h('span', {class: 'grow'}), h('span', {class: 'soft small'}, sweep.search ?? '')),
        sweep.why ? h('p', {class: 'small'}, sweep.why) : h('div', {class: 'small soft'}, `${sweep.trials} trials, ${whole(sweep.steps)} steps trained, begun ${ago(sweep.created)}`),
        sweep.best ? h('p', null, h('b', null, figures(sweep.best.loss, 5)), h('span', {class: 'soft'}, ` trial ${sweep.best.trial}: ${setting_text(sweep.best.setting)}`)) : null,
        h('div', {class: 'row'}, sweep_buttons(sweep)))))
      : h('p', {class: 'empty'}, 'There are no sweeps yet. trireme sweep RECIPE --param \'optim.learning_rate=log(1e-4,1e-1)\' --out runs/lr makes one.'));
  };
  draw();
  return listen(kind => { if (kind === 'all' || kind === 'sweep') draw(); });
};

/// A trial that trains is further than where it was evaluated last.
const step_text = (trial, sweep) => `${whole(trial.state === 'running' ? Math.max(state.runs.get(trial.run)?.step ?? 0, trial.step) : trial.step)} / ${whole(sweep.max_steps)}`;

export const sweep_view = (view, [id]) => {
  const place = h('div', {class: 'stack'}), rungs = new Chart({height: 290, label: 'losses by rung', format: v => number(v, 4), pad: 0.12});
  view.replaceChildren(place);
  const open = trial => { if (state.runs.has(trial.run)) location.hash = `#/run/${trial.run}`; };
  const head = h('div', {class: 'head'}), tiles = h('dl', {class: 'tiles'}), lines = h('div'), table = h('div', {class: 'scroll'});
  place.append(head, tiles, card('Settings and losses', 'a line is a trial; the strongest is the best', lines), card('Rungs', 'validation loss where trials were evaluated', rungs.element), h('section', {class: 'card'}, table));
  const draw = sweep => {
    head.replaceChildren(h('h1', null, sweep.name), chip(sweep.state), h('span', {class: 'grow'}), h('div', {class: 'row'}, h('a', {class: 'small', href: `/api/sweeps/${id}/trials.csv`, download: ''}, 'CSV'), sweep_buttons(sweep)));
    if (!sweep.list) { place.replaceChildren(head, h('p', {class: 'empty'}, sweep.why)); return; }
    const counts = sweep.counts;
    tiles.replaceChildren(tile('Best loss', figures(sweep.best?.loss, 5), sweep.best ? `trial ${sweep.best.trial}, step ${whole(sweep.best.step)}` : 'no evaluation yet'),
      tile('Trials', sweep.trials, `${counts.running} running, ${counts.done} to the end, ${counts.failed} failed`), tile('Search', sweep.search, `rungs at ${sweep.rungs.join(', ')}`),
      tile('Steps trained', whole(sweep.steps), `a whole trial has ${whole(sweep.max_steps)}`));
    lines.replaceChildren(parallel_coordinates(sweep, open));
    // Rungs are powers of the divisor: evenly spaced by their number.
    const place_of = step => { const i = sweep.rungs.indexOf(step); return i >= 0 ? i : sweep.rungs.filter(rung => rung < step).length - 0.5; };
    const best = sweep.best?.trial;
    rungs.set(sweep.list.filter(trial => trial.losses.length).sort((a, b) => (a.trial === best) - (b.trial === best)).flatMap(trial => {
      const x = trial.losses.map(([step]) => place_of(step)), y = trial.losses.map(([, loss]) => loss), shade = trial.trial === best ? color(1) : trial.state === 'running' ? color(2) : color(0);
      return [{name: `trial ${trial.trial}`, color: shade, x, y, opacity: trial.trial === best ? 1 : 0.5}, {name: `trial ${trial.trial}`, color: shade, x, y, style: 'dots', quiet: true}];
    }), {x_ticks: sweep.rungs.map((_, i) => i), x_format: i => whole(sweep.rungs[Math.round(i)]), marks: sweep.rungs.map((_, i) => i)});
    const last = trial => trial.losses.at(-1)?.[1] ?? Infinity, reached = trial => trial.losses.at(-1)?.[0] ?? 0;
    const trials = [...sweep.list].sort((a, b) => reached(b) - reached(a) || last(a) - last(b));
    table.replaceChildren(h('table', null, h('thead', null, h('tr', null, h('th', {class: 'text'}, 'trial'), h('th', {class: 'text'}, 'state'), h('th', null, 'step'), h('th', null, 'loss'), sweep.parameters.map(p => h('th', null, p.key)))),
      h('tbody', null, trials.map(trial => h('tr', {class: trial.trial === best ? 'best' : '', data: {href: '1'}, onclick: () => open(trial)},
        h('td', {class: 'text'}, state.runs.has(trial.run) ? h('a', {href: `#/run/${trial.run}`}, trial.trial) : trial.trial), h('td', {class: 'text'}, chip(trial.state)), h('td', {data: {run: trial.run ?? ''}}, step_text(trial, sweep)),
        h('td', null, figures(trial.losses.at(-1)?.[1])), sweep.parameters.map(p => h('td', null, trial.setting[p.key] ?? '–')))))));
  };
  let shown = null;
  const load = async () => { shown = await get(`/api/sweeps/${id}`); draw(shown); };
  load().catch(error => view.replaceChildren(h('p', {class: 'empty'}, error.message)));
  let timer = 0;
  const stop = listen((kind, data) => {
    const trial = kind === 'run' && data.run.experiment === id ? shown?.list?.find(one => one.run === data.run.id) : null;
    const cell = trial && table.querySelector(`td[data-run="${trial.run}"]`);
    if (cell) cell.textContent = step_text(trial, shown);
    if (kind === 'sweep' && data.id === id) timer ||= setTimeout(() => { timer = 0; load().catch(() => {}); }, 300);
  });
  return () => { stop(); clearTimeout(timer); };
};

export const queue_view = view => {
  const place = h('div', {class: 'stack'});
  view.replaceChildren(h('div', {class: 'head'}, h('h1', null, 'Queue'), h('span', {class: 'soft'}, 'what trains, and what waits for slots')), place);
  const row = (href, name, chip_state, more) => h('li', null, chip(chip_state), href ? h('a', {href, class: 'text'}, name) : h('span', {class: 'text'}, name), h('span', {class: 'soft small num'}, more));
  const draw = async () => {
    const live = [...state.sweeps.values()].filter(sweep => ['running', 'pausing', 'paused'].includes(sweep.state)).sort((a, b) => (b.priority ?? 0) - (a.priority ?? 0));
    const details = await Promise.all(live.map(sweep => get(`/api/sweeps/${sweep.id}`).catch(() => null)));
    const alone = [...state.runs.values()].filter(run => !run.experiment && ['running', 'starting', 'pausing', 'hanging'].includes(run.state));
    const cards = details.filter(sweep => sweep?.list).map(sweep => {
      const open = sweep.list.filter(trial => ['running', 'queued'].includes(trial.state)).sort((a, b) => a.state < b.state ? 1 : a.state > b.state ? -1 : a.trial - b.trial);
      const list = h('ul', {class: 'feed'}, open.map(trial => row(state.runs.has(trial.run) ? `#/run/${trial.run}` : null, `trial ${trial.trial}: ${setting_text(trial.setting)}`, trial.state,
        `step ${whole(state.runs.get(trial.run)?.step ?? trial.step)} until ${whole(trial.until)}`)));
      return h('section', {class: 'card'}, h('header', null, h('h2', null, h('a', {href: `#/sweep/${sweep.id}`}, sweep.name)), chip(sweep.state),
        h('span', {class: 'soft small'}, `priority ${sweep.priority}, weight ${sweep.weight}, ${sweep.slots_per_trial} slot${sweep.slots_per_trial === 1 ? '' : 's'} a trial, ${sweep.counts.running} running, ${sweep.counts.queued} queued`),
        h('span', {class: 'grow'}), h('div', {class: 'row'}, sweep_buttons(sweep))), open.length ? list : h('p', {class: 'none'}, 'Nothing of it waits.'));
    });
    place.replaceChildren(...cards, card('Runs by themselves', null, alone.length ? h('ul', {class: 'feed'}, alone.map(run => row(`#/run/${run.id}`, run.name, run.state, `step ${whole(run.step)} of ${whole(run.steps)}, ${run.ranks} rank${run.ranks === 1 ? '' : 's'}`)))
      : h('p', {class: 'none'}, 'None trains.')));
  };
  const safely = () => draw().catch(error => toast(error.message, true));
  safely();
  let timer = 0;
  const stop = listen(kind => { if (kind === 'all' || kind === 'sweep' || kind === 'run') timer ||= setTimeout(() => { timer = 0; safely(); }, 1000); });
  return () => { stop(); clearTimeout(timer); };
};

export const alerts_view = view => {
  const draw = () => {
    state.fresh_alerts = 0;
    view.replaceChildren(h('div', {class: 'head'}, h('h1', null, 'Alerts')), h('section', {class: 'card'}, state.alerts.length ? h('ul', {class: 'feed table'}, state.alerts.map(alert =>
      h('li', null, h('span', {class: 'when', title: new Date(alert.time * 1000).toISOString()}, ago(alert.time)), chip(alert.severity),
        h('a', {href: alert.run ? `#/run/${alert.run}` : `#/sweep/${alert.sweep}`}, alert.name), h('span', {class: 'text'}, alert.text))))
      : h('p', {class: 'none'}, 'Nothing has gone wrong.')));
  };
  draw();
  const stop = listen(kind => { if (kind === 'all' || kind === 'alert') draw(); });
  return stop;
};
