// What the editor needs of an HTTP gateway of holdfast: it appends to streams, follows them, and
// watches kvs, through lost networks and killed servers and gateways.
export const randomId = () => Math.random().toString(36).slice(2) + Date.now().toString(36);

/** Appends values to a stream, in order and each once, also those of a page that was reloaded.
 * `changed` is called when `waiting` or `error` changes. After an error nothing more is sent. */
export class Outbox {
  #isSending = false;

  constructor(url, changed) {
    Object.assign(this, { url, changed, waiting: JSON.parse(sessionStorage[url] ?? "[]") });
    this.#send();
  }

  add(value) {
    this.waiting.push({ key: randomId(), value });
    this.#keep();
    this.#send();
  }

  async #send() {
    if (this.#isSending) return;
    this.#isSending = true;
    for (let batch = [], tries = 0; this.waiting.length && !this.error; this.#keep()) {
      if (!batch.length) batch = this.waiting.slice(0, 100);
      if (JSON.stringify(batch).length > 200_000) batch.length = 1; // a gateway takes 900 kB
      const headers = { "Idempotency-Key": `${batch[0].key}-${batch.length}` };
      try {
        await send("POST", this.url, batch.map(({ value }) => value), { headers });
        this.waiting.splice(0, batch.length);
        [batch, tries] = [[], 0];
      } catch (error) {
        if (error.isFinal) this.error = error;
        else await pause(tries++);
      }
    }
    this.#isSending = false;
  }

  #keep() {
    sessionStorage[this.url] = JSON.stringify(this.waiting);
    this.changed();
  }
}

/** Give what is in a stream, and then what comes, to `take(value, time)`, for ever. */
export function follow(gateway, name, take, isLive = () => {}) {
  let next = 1;
  const receive = ({ seq, value, time }) => {
    next = seq + 1;
    for (const each of JSON.parse(value)) take(each, time);
  };
  const step = async (opened) => {
    const known = await send("GET", `${gateway}/v1/streams/${name}?start_seq=${next}`);
    for (const line of (await known.text()).split("\n")) if (line) receive(JSON.parse(line));
    const url = `${gateway}/v1/follow/${name}?start_seq=${next}`;
    await listen(url, opened, ({ message }) => message && receive(message));
  };
  forever(step, isLive);
}

/** Keep a Map equal to a kv, for ever. `changed` is called after each change. */
export function watch(gateway, name, map, changed) {
  const take = ({ entry, keys = [] }) => {
    if (entry) map.set(entry.key, JSON.parse(entry.value));
    for (const key of keys) map.delete(key);
    changed();
  };
  const step = (opened) => listen(`${gateway}/v1/watch/${name}`, opened, take);
  forever(step, () => map.clear());
}

/** Send a request. An error is final if repeating it cannot help. */
export async function send(method, url, value, { headers = {}, keepalive = false } = {}) {
  const [signal, body] = [AbortSignal.timeout(15_000), JSON.stringify(value)];
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(url, { method, body, headers, keepalive, signal });
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  const isFinal = answer.status < 500 && ![408, 425, 429].includes(answer.status);
  throw Object.assign(Error(problem.detail ?? `HTTP status ${answer.status}`), { isFinal });
}

async function forever(step, isLive) {
  for (let tries = 0; ; await pause(tries++)) {
    await step(() => isLive(true, (tries = 0))).catch((error) => console.info(error.message));
    isLive(false);
  }
}

function listen(url, onopen, take) {
  return new Promise((onclose) => {
    const socket = new WebSocket(url.replace(/^http/, "ws"));
    Object.assign(socket, { onopen, onclose, onmessage: ({ data }) => take(JSON.parse(data)) });
    // Without a network, nobody answers that it is closed.
    const leave = () => onclose(socket.close(), (socket.onmessage = null));
    addEventListener("offline", leave, { once: true });
  });
}

function pause(tries) {
  const ms = Math.min(3000, 100 * 2 ** tries) * (0.5 + Math.random() / 2);
  const online = (done) => addEventListener("online", done, { once: true });
  return Promise.race([new Promise((done) => setTimeout(done, ms)), new Promise(online)]);
}
