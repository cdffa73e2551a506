// One run: its curves, its ranks, its pipeline, its recipe; and what can be asked of it.
import {ago, bytes, card, chip, clock, color, count, duration, figures, h, number, percent, tile, whole, choice} from './base.js';
import {Chart, legend, smooth} from './chart.js';
import {expert_map, gantt, heat_map} from './figures.js';
import {get, kRow, listen, post, state} from './live.js';
import {ask_for, toast} from './ask.js';

const kParts = [['compute', 'compute', 0], ['comm', 'communication', 1], ['data', 'data', 4], ['overhead', 'overhead', 7]];
const balance = name => /balance|load|importance|router|aux|z_loss|z-loss/i.test(name);

const facts = run => [
  h('div', {class: 'tile'}, h('dt', null, 'Step'), h('dd', null, h('span', {id: 'step'}, String(run.step)), h('span', {class: 'soft'}, run.steps ? ` / ${whole(run.steps)}` : '')),
    h('div', {class: 'progress'}, h('i', {style: {width: `${run.steps ? Math.min(100, 100 * run.step / run.steps) : 0}%`}}))),
  tile('Loss', figures(run.loss, 5), run.validation ? `validation ${figures(run.validation.loss, 5)} at step ${whole(run.validation.step)}` : 'no validation yet'),
  tile('Throughput', `${count(run.tokens_per_s)}/s`, `${duration(run.step_seconds)} a step, ${count(run.tokens)} tokens so far`),
  tile('Time left', run.eta === null ? '–' : duration(run.eta), run.eta === null ? `last news ${ago(run.updated)}` : `started ${ago(run.started)}`),
  tile('MFU', percent(run.mfu), run.mfu === null ? 'trireme doctor measures the peak' : 'of the measured peak'),
  tile('Memory', bytes(run.memory), 'the largest of any rank'),
  tile('Model', run.model || '–', `${count(run.parameters)} parameters, ${run.precision || '–'}, ${run.ranks} rank${run.ranks === 1 ? '' : 's'}`),
  tile('Checkpoint', run.saved >= 0 ? `step ${whole(run.saved)}` : 'none yet', 'the newest that is complete'),
];

const buttons = run => {
  const act = (action, text, kind) => h('button', {type: 'button', class: kind, data: {action}, disabled: !run.can[action],
    onclick: () => ask_for(`/api/runs/${run.id}/actions/${action}`)}, text);
  if (run.state === 'finished') return [];
  return [run.can.resume ? act('resume', 'Resume', 'main') : act('pause', 'Pause', 'main'), act('save', 'Save now'), act('stop', 'Stop', 'danger')];
};

/// A name, a bar as long as its share of `top`, and the value.
const bars = (values, top, text) => values.flatMap(([name, v], i) => [h('span', null, name), h('i', {style: {width: `${Math.max(1, 100 * v / top)}%`, background: color(i)}}), h('b', null, text(v))]);

/// Tokens of a step, from the tokens of all steps so far. Where points were thinned out, the mean in between.
const batch_of = ({x, y}) => ({x: x.slice(1), y: x.slice(1).map((step, i) => y[i + 1] === null || y[i] === null || step === x[i] ? null : (y[i + 1] - y[i]) / (step - x[i]))});

const metrics_tab = (id, place) => {
  let curves = null, log = false;
  const loss = new Chart({height: 300, label: 'loss by step'}), lr = new Chart({label: 'learning rate', zero: true}), norm = new Chart({label: 'gradient norm', zero: true}),
        speed = new Chart({label: 'throughput', format: count, zero: true}), mfu = new Chart({label: 'MFU', format: percent, zero: true}),
        memory = new Chart({label: 'memory', format: bytes, zero: true, binary: true}),
        parts = new Chart({label: 'where the time of a step goes', stacked: true, format: duration}), terms = new Chart({label: 'terms of the loss'}),
        experts = new Chart({label: 'balance of the experts', zero: true}), noise = new Chart({label: 'gradient noise scale', format: count, zero: true});
  const uses = h('div', {class: 'bars'}), terms_card = card('Terms of the loss', null, terms.element), experts_card = card('Balance of the experts', 'auxiliary losses of the router', experts.element);
  const mfu_card = card('MFU', 'of the measured peak', mfu.element), noises = h('div', {class: 'bars'});
  const noise_card = card('Gradient noise scale', 'tokens; beyond it a larger batch brings little', legend([['noise scale', color(1)], ['batch', color(0)]]), noise.element);
  const noises_card = card('Noise scale by layer', 'tokens, at the last step', noises);
  terms_card.hidden = experts_card.hidden = mfu_card.hidden = noise_card.hidden = noises_card.hidden = true;
  const loss_card = card('Loss', 'as it is, and smoothed; dots are evaluations, dashed lines checkpoints',
    h('div', {class: 'row'}, legend([['training', color(0)], ['validation', color(1)]]), h('span', {class: 'grow'}),
      choice('Scale', [['lin', 'linear'], ['log', 'log']], 'lin', value => { log = value === 'log'; draw(); })), loss.element);
  loss_card.classList.add('wide');
  place.replaceChildren(h('div', {class: 'grid'}, loss_card, card('Gradient norm', 'before clipping', norm.element), card('Learning rate', null, lr.element),
    card('Throughput', 'tokens per second', speed.element), card('A step\'s time', 'seconds', legend(kParts.map(([, text, i]) => [text, color(i)])), parts.element),
    mfu_card, card('Memory', 'bytes, the largest of any rank', memory.element), card('Memory by use', 'the most so far, of the fullest rank', uses), terms_card, experts_card, noise_card, noises_card));
  const line = (name, curve, i) => [{name, color: color(i), x: curve.x, y: curve.y, style: 'raw', quiet: true},
                                    {name, color: color(i), x: curve.x, y: smooth(curve.y, Math.floor(curve.x.length / 60))}];
  const draw = () => {
    if (!curves) return;
    loss.set([...line('training', curves.loss, 0), {name: 'validation', color: color(1), ...curves.validation, style: 'dots'}], {log, marks: curves.checkpoints.x.length <= 40 ? curves.checkpoints.x : []});
    lr.set([{name: 'learning rate', color: color(3), ...curves.lr}]);
    norm.set(line('gradient norm', curves.grad_norm, 4));
    speed.set(line('tokens/s', curves.tokens_per_s, 2));
    memory.set([{name: 'memory', color: color(5), ...curves.memory}]);
    mfu_card.hidden = !curves.mfu.y.some(y => y !== null);
    mfu.set(mfu_card.hidden ? [] : line('MFU', curves.mfu, 3));
    parts.set(kParts.map(([key, text, i]) => ({name: text, color: color(i), ...curves.breakdown[key]})));
    const named = Object.entries(curves.losses ?? {});
    terms_card.hidden = !named.length;
    terms.set(named.filter(([name]) => !balance(name)).flatMap(([name, curve], i) => line(name, curve, i)));
    experts_card.hidden = !named.some(([name]) => balance(name));
    experts.set(named.filter(([name]) => balance(name)).flatMap(([name, curve], i) => line(name, curve, i)));
    noise_card.hidden = !curves.noise_scale;
    noise.set(curves.noise_scale ? [...line('noise scale', curves.noise_scale, 1), {name: 'batch', color: color(0), ...batch_of(curves.tokens)}] : []);
    const layers = Object.entries(curves.noise_scales ?? {}).filter(([, v]) => v !== null), top = Math.max(...layers.map(([, v]) => v), 0);
    noises_card.hidden = !layers.length;
    noises.replaceChildren(...bars(layers, top, count));
  };
  const load = async () => { curves = await get(`/api/runs/${id}/series`); draw(); };
  const load_memory = async () => {
    const {ranks} = await get(`/api/runs/${id}/ranks`), most = {};
    for (const rank of ranks) for (const [use, v] of Object.entries(rank.memory)) if (use !== 'peak') most[use] = Math.max(most[use] ?? 0, v);
    const all = Object.entries(most).sort((a, b) => b[1] - a[1]);
    uses.replaceChildren(...bars(all, all[0]?.[1] ?? 1, bytes));
    if (!all.length) uses.replaceChildren(h('span', {class: 'none'}, 'The ranks have written nothing yet.'));
  };
  const fail = error => toast(error.message, true);
  load().catch(fail);
  load_memory().catch(() => {});
  // Curves are asked for again now and then: rows that arrive are appended as they are, the server's are thinned.
  const slow = setInterval(() => { if (curves && curves.loss.x.length > 1500) load().catch(() => {}); }, 20000);
  let timer = 0;
  const add = ({rows, restarted}) => {
    if (restarted || !curves) return load().catch(() => {});
    for (const row of rows) {
      const v = Object.fromEntries(kRow.map((name, i) => [name, row[i]])), put = (curve, y) => { curve.x.push(v.step); curve.y.push(y); };
      for (const name of ['loss', 'grad_norm', 'lr', 'tokens', 'tokens_per_s', 'mfu', 'memory', 'seconds']) put(curves[name], v[name]);
      if (v.noise_scale !== null) put(curves.noise_scale ??= {x: [], y: []}, v.noise_scale);
      for (const [name] of kParts) put(curves.breakdown[name], v[name]);
    }
    if (rows.length && (curves.losses || curves.noise_scales)) load().catch(() => {});
    timer ||= setTimeout(() => { timer = 0; draw(); }, 240);
  };
  let evaluated = state.runs.get(id)?.validation?.step;
  return {add: news => { add(news); if (news.run.validation?.step !== evaluated) { evaluated = news.run.validation?.step; load().catch(() => {}); } },
          close: () => { clearInterval(slow); clearTimeout(timer); }};
};

const ranks_tab = (id, place) => {
  let column = 'compute', data = null;
  const verdict = h('div', {class: 'row'}), map = h('div'), bars = h('div', {class: 'scroll'}), sent = h('div', {class: 'scroll'}), line = h('ul', {class: 'feed'});
  place.replaceChildren(h('div', {class: 'stack'}, h('section', {class: 'card'}, verdict),
    card('Time of every rank', 'the last 60 steps', choice('What', [['compute', 'compute'], ['comm', 'communication'], ['data', 'data'], ['seconds', 'step']], column, value => { column = value; draw(); }), map),
    card('Memory by rank and use', 'the most so far', bars), card('Sent to other ranks', 'since the processes began', sent), card('What happened', 'of all ranks and the supervisor, in Lamport order', line)));
  const draw = () => {
    if (!data) return;
    const slow = new Map(data.stragglers.map(one => [one.rank, one.times]));
    verdict.replaceChildren(chip({alive: 'running', hanging: 'hanging', starting: 'starting', idle: 'idle'}[data.verdict.state]), h('span', null, data.verdict.text),
      slow.size ? h('span', {class: 'chip', data: {state: 'warning'}}, [...slow].map(([rank, times]) => `rank ${rank} computes ${number(times, 2)} times as long`).join(', '))
                : h('span', {class: 'soft small'}, data.ranks.length > 1 ? 'no stragglers' : ''));
    map.replaceChildren(heat_map(data.ranks, column, slow));
    const uses = [...new Set(data.ranks.flatMap(rank => Object.keys(rank.memory)))];
    bars.replaceChildren(h('table', null, h('thead', null, h('tr', null, h('th', {class: 'text'}, 'rank'), h('th', null, 'step'), uses.map(use => h('th', null, use)))),
      h('tbody', null, data.ranks.map(rank => h('tr', null, h('td', {class: 'text'}, String(rank.rank)), h('td', null, whole(rank.step)), uses.map(use => h('td', null, bytes(rank.memory[use]))))))));
    sent.replaceChildren(traffic(data.ranks));
    line.replaceChildren(...data.timeline.slice(-25).reverse().map(event => h('li', null, h('span', {class: 'when'}, clock(event.time)), h('span', {class: 'soft'}, event.who), h('span', {class: 'text'}, event.event))));
    if (!data.timeline.length) line.replaceChildren(h('li', {class: 'none'}, 'Nothing yet.'));
  };
  const load = async () => { data = await get(`/api/runs/${id}/ranks`); draw(); };
  load().catch(error => toast(error.message, true));
  const timer = setInterval(() => { if (!document.hidden && ['running', 'hanging', 'pausing'].includes(state.runs.get(id)?.state)) load().catch(() => {}); }, 2000);
  return {add: () => {}, close: () => clearInterval(timer)};
};

/// Of several ranks: what they sent, by group and collective, all of them together and the one that sent most.
const traffic = ranks => {
  const rows = new Map();
  for (const rank of ranks) for (const {group, op, bytes: sent} of rank.sent) {
    const row = rows.get(`${group} ${op}`) ?? {group, op, all: 0, most: 0};
    row.all += sent;
    row.most = Math.max(row.most, sent);
    rows.set(`${group} ${op}`, row);
  }
  const sorted = [...rows.values()].sort((a, b) => b.all - a.all);
  return sorted.length ? h('table', null, h('thead', null, h('tr', null, ['group', 'collective'].map(text => h('th', {class: 'text'}, text)), ['all ranks', 'most of a rank'].map(text => h('th', null, text)))),
    h('tbody', null, sorted.map(row => h('tr', null, h('td', {class: 'text'}, row.group), h('td', {class: 'text'}, row.op), h('td', null, bytes(row.all)), h('td', null, bytes(row.most))))))
    : h('p', {class: 'none'}, 'No rank has sent anything to another.');
};

const experts_tab = (id, place) => {
  const chart = new Chart({label: 'the most loaded expert over the mean', zero: true}), map = h('div'), table = h('div', {class: 'scroll'});
  const wide = card('Tokens of every expert', 'of the last steps that told them', map);
  place.replaceChildren(h('div', {class: 'stack'}, card('Balance over the steps', 'the most loaded expert over the mean, of the worst layer; 1 is even', chart.element), wide, card('Layers', 'a layer takes as long as its busiest rank', table)));
  const load = async () => {
    const data = await get(`/api/runs/${id}/experts`);
    if (!data) { map.replaceChildren(h('p', {class: 'none'}, 'This run has no experts, or no step has told their loads yet.')); return; }
    wide.querySelector('header span').textContent = data.steps > 1 ? `${data.steps} steps up to ${whole(data.step)}` : `step ${whole(data.step)}`;
    map.replaceChildren(expert_map(data.layers));
    const end = (tokens, pick) => { const v = pick(...tokens); return `expert ${tokens.indexOf(v)}: ${count(v)}`; };
    table.replaceChildren(h('table', null, h('thead', null, h('tr', null, h('th', {class: 'text'}, 'layer'), ['max / mean', 'most', 'least', 'without a token'].map(text => h('th', null, text)),
        data.ranks > 1 ? ['max / mean of ranks', 'tokens of each rank'].map(text => h('th', null, text)) : null)),
      h('tbody', null, data.layers.map(layer => h('tr', null, h('td', {class: 'text'}, layer.name), h('td', null, figures(layer.imbalance, 3)), h('td', null, end(layer.tokens, Math.max)), h('td', null, end(layer.tokens, Math.min)),
        h('td', null, String(layer.tokens.filter(tokens => tokens === 0).length)),
        data.ranks > 1 ? [h('td', null, figures(layer.rank_imbalance, 3)), h('td', null, layer.ranks.map(count).join(', '))] : null)))));
    const {imbalance} = await get(`/api/runs/${id}/series?curves=imbalance`);
    if (imbalance) chart.set([{name: 'max / mean', color: color(1), x: imbalance.x, y: imbalance.y, style: 'raw', quiet: true}, {name: 'max / mean', color: color(1), x: imbalance.x, y: smooth(imbalance.y, Math.floor(imbalance.x.length / 60))}]);
  };
  load().catch(error => toast(error.message, true));
  const timer = setInterval(() => { if (!document.hidden && state.runs.get(id)?.state === 'running') load().catch(() => {}); }, 3000);
  return {add: () => {}, close: () => clearInterval(timer)};
};

const pipeline_tab = (id, place) => {
  const load = async () => {
    const data = await get(`/api/runs/${id}/pipeline`);
    place.replaceChildren(data ? card('The last step that was measured', `${data.name}: ${duration(data.seconds)}, bubble ${percent(data.bubble)}`, gantt(data))
      : card('Pipeline', null, h('p', {class: 'none'}, 'This run has no pipeline stages, or none of its steps was recorded yet: they are written with each checkpoint and at the end.')));
  };
  load().catch(error => toast(error.message, true));
  let saved = state.runs.get(id)?.saved;
  return {add: ({run}) => { if (run.saved !== saved) { saved = run.saved; load().catch(() => {}); } }, close: () => {}};
};

const recipe_tab = (id, place) => {
  get(`/api/runs/${id}/recipe`).then(({recipe}) => place.replaceChildren(card('Recipe', 'the whole effective one; valid input again', h('pre', {tabindex: 0}, recipe ?? 'There is none.'))),
    error => toast(error.message, true));
  return {add: () => {}, close: () => {}};
};

const kTabs = {metrics: ['Metrics', metrics_tab], ranks: ['Ranks', ranks_tab], experts: ['Experts', experts_tab], pipeline: ['Pipeline', pipeline_tab], recipe: ['Recipe', recipe_tab]};

export const run_view = (view, [id, tab = 'metrics']) => {
  const run = state.runs.get(id);
  if (!run) { view.replaceChildren(h('p', {class: 'empty'}, 'There is no such run; it may have been moved or removed.')); return () => {}; }
  const title = h('h1'), status = h('span'), actions = h('div', {class: 'row'}), tiles = h('dl', {class: 'tiles eight'}), place = h('div');
  const trial = run.experiment ? h('a', {href: `#/sweep/${run.experiment}`, class: 'small'}, `trial ${run.trial} of its sweep`) : null;
  const note = h('textarea', {class: 'note', rows: 1, placeholder: 'A note for people', 'aria-label': 'Note', onchange: event => post(`/api/runs/${id}/note`, {note: event.target.value}).then(
    () => toast('noted'), error => toast(error.message, true))});
  note.value = run.note;
  const tabs = h('div', {class: 'seg', role: 'tablist', 'aria-label': 'Parts of the run'}, Object.entries(kTabs).map(([key, [text]]) =>
    h('button', {type: 'button', role: 'tab', data: {tab: key}, 'aria-selected': String(key === tab), onclick: () => { location.hash = `#/run/${id}/${key}`; }}, text)));
  view.replaceChildren(h('div', {class: 'head'}, title, status, trial, h('span', {class: 'grow'}), actions), tiles,
    h('div', {class: 'head'}, tabs, h('div', {class: 'grow'}, note)), place);
  // Only models with experts have that part; the first loads may still have to be written.
  const experts = tabs.querySelector('[data-tab=experts]');
  experts.hidden = tab !== 'experts';
  let asked = 0;
  const look_for_experts = () => {
    if (!experts.hidden || Date.now() - asked < 20000) return;
    asked = Date.now();
    get(`/api/runs/${id}/experts`).then(data => { experts.hidden = !data; }, () => {});
  };
  look_for_experts();
  let can = '';
  const draw = now => {
    title.textContent = now.name;
    status.replaceChildren(chip(now.state), now.why ? h('span', {class: 'small soft'}, ` ${now.why}`) : '');
    const able = JSON.stringify(now.can);
    if (able !== can) { can = able; actions.replaceChildren(...buttons(now)); }
    tiles.replaceChildren(...facts(now));
  };
  draw(run);
  const part = (kTabs[tab] ?? kTabs.metrics)[1](id, place);
  const stop = listen((kind, data) => {
    if (kind === 'all' && state.runs.has(id)) draw(state.runs.get(id));
    if (kind !== 'run' || data.run.id !== id) return;
    draw(data.run);
    look_for_experts();
    part.add(data);
  });
  return () => { stop(); part.close(); };
};
