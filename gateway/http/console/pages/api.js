// Requests to the gateway that served this page, and to nothing else.
//
// The token is in this tab's session storage and goes with each request as a header, also with the
// streams of events, which are read by fetch for that reason. Nothing is ever sent by itself.

const KEY = "holdfast.token";
const RETRY_MS = [500, 1000, 2000, 5000];

export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the gateway answered ${status}`);
    this.status = status;
    this.code = problem.code || "unknown";
    this.fields = problem;
  }
}

const listeners = { unauthorized: () => {} };

export function onUnauthorized(listener) {
  listeners.unauthorized = listener;
}

export function token() {
  return sessionStorage.getItem(KEY);
}

export function useToken(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

/** The path of a request. Throws where a URL cannot name something. */
export function path(...parts) {
  if (parts.some((part) => part === "." || part === "..")) throw new Error("browsers cannot ask for a name of dots alone");
  return parts.map((part, at) => (at === 0 ? part : encodeURIComponent(part))).join("/");
}

/** Send a request and return the response. Throws Refusal, or TypeError without a connection. */
export async function ask(url, options = {}) {
  const headers = new Headers(options.headers);
  const held = token();
  if (held) headers.set("Authorization", `Bearer ${held}`);
  const response = await fetch(url, {
    ...options, headers, mode: "same-origin", credentials: "omit", cache: "no-store", redirect: "error",
  });
  if (response.ok) return response;
  let problem = {};
  try {
    problem = JSON.parse(await response.text());
  } catch {
    // A proxy in between answered.
  }
  const refusal = new Refusal(response.status, problem ?? {});
  if (refusal.status === 401) listeners.unauthorized(refusal);
  throw refusal;
}

export async function json(url, options) {
  return (await ask(url, options)).json();
}

/**
 * Follow server-sent events until `signal` aborts, reconnecting with the last id. `told` gets each
 * event as {event, data, id}; `state` hears "open", or the error and when it is tried again.
 */
export async function follow(url, { signal, told, state = () => {} }) {
  let lastId = null;
  let failures = 0;
  while (!signal.aborted) {
    try {
      const headers = { Accept: "text/event-stream" };
      if (lastId !== null) headers["Last-Event-ID"] = lastId;
      const response = await ask(url, { headers, signal });
      state("open");
      failures = 0;
      for await (const event of events(response.body)) {
        if (event.id !== undefined) lastId = event.id;
        told(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      state(error);
      if (error instanceof Refusal && error.status < 500 && error.status !== 429) return;
    }
    const wait = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)];
    failures += 1;
    await sleep(wait, signal);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = {};
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (event.data !== undefined) yield event;
          event = {};
        } else if (!line.startsWith(":")) {
          const at = line.indexOf(":");
          const name = at < 0 ? line : line.slice(0, at);
          const text = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
          event[name] = name === "data" && event.data !== undefined ? `${event.data}\n${text}` : text;
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

/** What to tell a person of an error. */
export function reason(error) {
  if (error instanceof Refusal) {
    return error.status === 403 ? `Not allowed: ${error.message}` : error.message;
  }
  if (error instanceof TypeError) return "the gateway does not answer";
  return String(error?.message ?? error);
}
