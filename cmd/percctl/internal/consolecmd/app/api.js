// Requests to the console.

let settings = { token: '', refresh: 2, writes: false, trace_url: '', metrics: false };

export const config = () => settings;

async function ask(path, init) {
  let res;
  try {
    res = await fetch(path, init);
  } catch {
    throw new Error('The console does not answer. Does percctl console still run?');
  }
  const text = await res.text();
  let body;
  try { body = JSON.parse(text); } catch { throw new Error(text.trim() || res.statusText); }
  if (!res.ok) throw new Error(body.error || res.statusText);
  return body;
}

export const get = (path, params) => ask(path + (params ? '?' + new URLSearchParams(params) : ''));

export const post = (path, body) => ask(path, { method: 'POST', headers: { 'Content-Type': 'application/json', 'X-Percctl-Token': settings.token }, body: JSON.stringify(body ?? {}) });

export async function load() { settings = await get('api/config'); }

// job waits for a command that was started, and calls seen with each answer.
export async function job(started, seen) {
  for (let j = started; ; j = await get('api/job/' + encodeURIComponent(started.name))) {
    seen(j);
    if (j.done) return j;
    await new Promise((r) => setTimeout(r, 250));
  }
}
