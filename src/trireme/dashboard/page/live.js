// What the server says of runs and sweeps, kept up to date by its stream of events; and what it is asked to do.
export const state = {runs: new Map(), sweeps: new Map(), alerts: [], ready: false, fresh_alerts: 0};

const listeners = new Set();
/// `then(kind, data)` for everything that happens, until the function that is returned is called.
export const listen = then => { listeners.add(then); return () => listeners.delete(then); };
const tell = (kind, data) => { for (const then of [...listeners]) then(kind, data); };

const take_overview = overview => {
  state.runs = new Map(overview.runs.map(run => [run.id, run]));
  state.sweeps = new Map(overview.sweeps.map(sweep => [sweep.id, sweep]));
  state.alerts = overview.alerts;
  state.ready = true;
  tell('all');
};

export const get = async path => {
  const answer = await fetch(path, {headers: {Accept: 'application/json'}});
  if (answer.status === 401) tell('locked');
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(body?.error?.message ?? `the server answered ${answer.status}`);
  return body;
};

// For this tab alone; a new one is opened with the address that the program printed.
export const token = {
  get: () => sessionStorage.getItem('token') ?? '',
  set: value => sessionStorage.setItem('token', value),
};

export const post = async (path, body) => {
  const answer = await fetch(path, {method: 'POST', headers: {Authorization: `Bearer ${token.get()}`, 'Content-Type': 'application/json'},
                                    body: body === undefined ? undefined : JSON.stringify(body)});
  const said = await answer.json().catch(() => null);
  if (answer.status === 401) {
    tell('locked');
    throw new Error('that needs the token');
  }
  if (!answer.ok) throw new Error(said?.error?.message ?? `the server answered ${answer.status}`);
  return said;
};

let again = 0;
const reload = () => {
  clearTimeout(again);
  again = setTimeout(() => get('/api/overview').then(take_overview, () => {}), 150);
};

/// Runs through the points of a new row of numbers, in the order in which the server sends them.
export const kRow = ['step', 'loss', 'grad_norm', 'lr', 'tokens', 'tokens_per_s', 'mfu', 'memory', 'seconds', 'compute', 'data', 'comm', 'overhead', 'noise_scale'];

const lengthen = (spark, rows) => {
  for (const row of rows) { spark.x.push(row[0]); spark.y.push(row[1]); }
  if (spark.x.length <= 240) return;
  const keep = (_, i) => i % 2 === 0 || i === spark.x.length - 1;  // until the next snapshot, which is thinned with care
  spark.y = spark.y.filter(keep);
  spark.x = spark.x.filter(keep);
};

let source = null, waiting = 0;
export const connect = () => {
  clearTimeout(waiting);
  source?.close();
  source = new EventSource('/api/events');
  source.onopen = () => tell('link', 'live');
  source.onerror = () => {
    tell('link', 'lost');
    if (source.readyState !== EventSource.CLOSED) return;  // the browser tries again by itself
    waiting = setTimeout(connect, 2000);
  };
  const on = (name, then) => source.addEventListener(name, event => { tell('link', 'live'); then(JSON.parse(event.data)); });
  on('snapshot', take_overview);
  on('catalogue', reload);
  on('run', ({run, rows, restarted}) => {
    const before = state.runs.get(run.id);
    if (!before) return reload();
    run.spark = before.spark ?? {x: [], y: []};
    if (restarted && !rows.length) reload(); else lengthen(run.spark, rows);
    state.runs.set(run.id, run);
    tell('run', {run, rows, restarted});
  });
  on('sweep', sweep => { state.sweeps.set(sweep.id, sweep); tell('sweep', sweep); });
  on('alert', alert => {
    state.alerts = [alert, ...state.alerts].slice(0, 100);
    ++state.fresh_alerts;
    tell('alert', alert);
  });
};
