// Asking the server for a change, with the token; and telling what came of it.
import {h} from './base.js';
import {connect, post, token} from './live.js';

export const toast = (text, bad = false) => {
  const place = document.getElementById('toasts'), element = h('div', {class: bad ? 'toast bad' : 'toast'}, text);
  place.append(element);
  while (place.children.length > 4) place.firstChild.remove();
  setTimeout(() => element.remove(), bad ? 9000 : 5000);
};

/// Asks for the token; true when one was given.
export const ask_token = () => new Promise(resolve => {
  const dialog = document.getElementById('ask'), input = document.getElementById('ask-token');
  if (dialog.open) return resolve(false);
  input.value = '';
  dialog.returnValue = 'cancel';
  dialog.showModal();
  dialog.addEventListener('close', () => {
    const given = dialog.returnValue === 'ok' && input.value.trim();
    if (given) token.set(input.value.trim());
    resolve(Boolean(given));
  }, {once: true});
});

/// The cookie lets this browser read from another machine, where streams of events cannot carry a header.
export const log_in = () => post('/api/login').then(connect);

export const ask_for = async path => {
  if (!token.get() && !await ask_token()) return;
  try {
    toast((await post(path)).done);
  } catch (error) {
    toast(error.message, true);
  }
};
