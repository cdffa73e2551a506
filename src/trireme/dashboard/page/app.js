// The page: which view an address shows, the bar above it, the token.
import {h} from './base.js';
import {connect, listen, state, token} from './live.js';
import {ask_token, log_in, toast} from './ask.js';
import {overview} from './overview.js';
import {run_view} from './run.js';
import {compare_view} from './compare.js';
import {alerts_view, queue_view, sweep_view, sweeps_view} from './sweep.js';

// name in the address -> view, entry of the bar
const kViews = {'': [overview, 'overview'], run: [run_view, 'overview'], compare: [compare_view, 'compare'], sweeps: [sweeps_view, 'sweeps'],
                sweep: [sweep_view, 'sweeps'], queue: [queue_view, 'queue'], alerts: [alerts_view, 'alerts']};

const take_token = () => {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return false;
  token.set(decodeURIComponent(found[1]));
  history.replaceState(null, '', '#/');  // not in the history, nor on a screen that others see
  return true;
};

let leave = () => {}, shown = '';
const show = () => {
  const address = location.hash.replace(/^#\/?/, ''), [path, search = ''] = address.split('?');
  const [name, ...rest] = path.split('/');
  const [view, entry] = kViews[name] ?? kViews[''];
  leave();
  leave = () => {};
  const place = document.getElementById('view');
  for (const link of document.querySelectorAll('.bar nav a')) {
    if (link.dataset.view === entry) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current');
  }
  if (!state.ready) return;
  leave = view(place, rest.map(decodeURIComponent), Object.fromEntries(new URLSearchParams(search)));
  const run = name === 'run' ? state.runs.get(rest[0])?.name : null;
  document.title = run ? `${run} – Trireme` : 'Trireme';
  if (shown && shown !== `${name}/${rest[0]}`) { scrollTo(0, 0); place.focus({preventScroll: true}); }
  shown = `${name}/${rest[0]}`;
};

const link = document.getElementById('link');
const set_link = value => {
  if (link.dataset.state === value) return;
  link.dataset.state = value;
  link.textContent = value === 'live' ? 'live' : value === 'lost' ? 'connection lost' : 'connecting';
};

let first = true, asking = false;
listen(async (kind, data) => {
  if (kind === 'link') return set_link(data);
  if (kind === 'all' && first) { first = false; show(); }
  if (kind === 'alert' && data.severity !== 'info') toast(`${data.name}: ${data.text}`, true);
  if (kind === 'alert' || kind === 'all') {
    const badge = document.getElementById('alert-count');
    badge.hidden = state.fresh_alerts === 0;
    badge.textContent = String(state.fresh_alerts);
  }
  if (kind === 'locked' && !asking) {  // the token is missing or another one
    asking = true;
    if (await ask_token()) await log_in().catch(error => toast(error.message, true));
    asking = false;
  }
});

document.getElementById('theme').addEventListener('click', () => {
  const root = document.documentElement, next = root.dataset.theme === 'dark' ? 'light' : 'dark';
  root.dataset.theme = next;
  localStorage.setItem('theme', next);
});
document.getElementById('token').addEventListener('click', async () => { if (await ask_token()) toast('the token is kept for this tab'); });
addEventListener('hashchange', () => { if (take_token()) return; show(); });
addEventListener('keydown', event => {
  if (event.target.matches('input, textarea, select') || event.ctrlKey || event.metaKey || event.altKey) return;
  const views = {1: '#/', 2: '#/compare', 3: '#/sweeps', 4: '#/queue', 5: '#/alerts'};
  if (views[event.key]) location.hash = views[event.key];
  if (event.key === '/') { event.preventDefault(); document.querySelector('input[type=search]')?.focus(); }
});

take_token();
// Where reading needs the token too, a stream of events would only say that it failed: ask first.
fetch('/api/session').then(async answer => {
  if (answer.status !== 401) return;
  if (!token.get()) await ask_token();
  await log_in().catch(error => toast(error.message, true));
}).catch(() => {}).finally(connect);
document.getElementById('view').replaceChildren(h('p', {class: 'empty'}, 'Looking at the runs…'));
