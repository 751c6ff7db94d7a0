// What the page keeps in this browser, where it may.

/** `sessionStorage` or `localStorage`; where cookies are blocked, which throws, one that keeps nothing. */
export function storage(name) {
  try {
    return window[name];
  } catch {
    return { getItem: () => null, setItem: () => {} };
  }
}
