// Elements and texts. Whatever comes from a run's files goes through textContent and attributes, never through HTML.
const put = (element, children) => {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
};

export const h = (tag, props, ...children) => {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (key === 'style') Object.assign(element.style, value);
    else if (key === 'data') Object.assign(element.dataset, value);
    else if (key in element && key !== 'list' && typeof value !== 'string') element[key] = value;
    else element.setAttribute(key, value === true ? '' : value);
  }
  return put(element, children);
};

export const s = (tag, attributes, ...children) => {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key === 'style') Object.assign(element.style, value);
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  return put(element, children);
};

export const color = i => `var(--c${i % 8})`;

const known = v => v !== null && v !== undefined && Number.isFinite(v);
export const number = (v, digits = 4) => {
  if (!known(v)) return '–';
  if (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6)) return v.toExponential(2).replace(/\.?0+e/, 'e');
  return String(+v.toPrecision(digits));
};
/// With all its digits: losses below each other line up.
export const figures = (v, digits = 4) => known(v) && Math.abs(v) >= 1e-3 && Math.abs(v) < 10 ** digits ? v.toPrecision(digits) : number(v, digits);
export const count = v => {
  if (!known(v)) return '–';
  const n = Math.abs(v), [k, unit] = n >= 1e12 ? [1e12, 'T'] : n >= 1e9 ? [1e9, 'B'] : n >= 1e6 ? [1e6, 'M'] : n >= 1e4 ? [1e3, 'k'] : [1, ''];
  return (k === 1 ? String(+v.toPrecision(4)) : +(v / k).toPrecision(3)) + unit;
};
export const whole = v => known(v) ? Math.round(v).toLocaleString('en') : '–';
export const bytes = v => {
  if (!known(v)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (Math.abs(v) >= 1000 && i < units.length - 1) { v /= 1024; ++i; }
  return `${+v.toPrecision(3)} ${units[i]}`;
};
export const percent = v => v === 0 ? '0 %' : known(v) ? `${(100 * v).toFixed(v < 0.1 ? 1 : 0)} %` : '–';
export const duration = v => {
  if (!known(v)) return '–';
  if (v === 0) return '0 s';
  if (v < 1e-3) return `${+(v * 1e6).toPrecision(3)} µs`;
  if (v < 1) return `${+(v * 1e3).toPrecision(3)} ms`;
  if (v < 100) return `${+v.toPrecision(3)} s`;
  const minutes = Math.round(v / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${String(minutes % 60).padStart(2, '0')}`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
};
export const ago = time => {
  if (!time) return '–';
  const v = Date.now() / 1000 - time;
  if (v < 5) return 'now';
  return v < 100 ? `${Math.round(v)} s ago` : v < 86400 * 7 ? `${duration(v)} ago` : new Date(time * 1000).toLocaleDateString('en-CA');
};
export const clock = time => new Date(time * 1000).toLocaleString('en-CA', {hour12: false}).replace(',', '');

export const chip = state => h('span', {class: 'chip', data: {state}}, state);
export const tile = (title, value, more, extra) =>
  h('div', {class: 'tile'}, h('dt', null, title), h('dd', null, value, more ? h('small', null, more) : null), extra);
export const card = (title, more, ...children) =>
  h('section', {class: 'card'}, h('header', null, h('h2', null, title), more ? h('span', {class: 'soft small'}, more) : null), children);

/// Buttons of which one is pressed.
export const choice = (label, options, chosen, then) => {
  const group = h('div', {class: 'seg', role: 'group', 'aria-label': label});
  for (const [value, text] of options) {
    group.append(h('button', {type: 'button', data: {value}, 'aria-pressed': String(value === chosen), onclick: event => {
      for (const button of group.children) button.setAttribute('aria-pressed', String(button === event.currentTarget));
      then(value);
    }}, text));
  }
  return group;
};
