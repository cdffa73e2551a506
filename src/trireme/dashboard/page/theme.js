// Light or dark, before anything is drawn: as chosen here, else as the system has it.
(() => {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const chosen = () => { try { return localStorage.getItem('theme'); } catch { return null; } };
  const apply = () => { document.documentElement.dataset.theme = chosen() || (dark.matches ? 'dark' : 'light'); };
  dark.addEventListener('change', apply);
  apply();
})();
