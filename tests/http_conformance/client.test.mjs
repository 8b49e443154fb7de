// The official client library (npm @durable-streams/client) reads and writes at the gateway.
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client";
import { expect, test } from "vitest";

const base = `${process.env.GATEWAY_URL}/v1/stream/official-client`;
const urlOf = (name) => `${base}/${name}-${Date.now()}-${Math.random().toString(36).slice(2)}`;
const made = (name, contentType) => DurableStream.create({ url: urlOf(name), contentType });

// What a live reader gets until it has `count` messages, and the offset behind them.
async function followed(url, live, count, offset) {
  const found = await stream({ url, live, offset, json: true });
  const items = [];
  return new Promise((resolve, reject) => {
    found.closed.catch(reject);
    found.subscribeJson(async (batch) => {
      items.push(...batch.items);
      if (items.length >= count) {
        resolve({ items, offset: batch.offset });
        found.cancel();
      }
    });
  });
}

test("text is appended, read, and deleted", async () => {
  const handle = await made("text", "text/plain");
  await handle.append("hello ");
  await handle.append("world\r\n\u00e9");
  const found = await stream({ url: handle.url, live: false });
  expect(await found.text()).toBe("hello world\r\n\u00e9");
  expect((await handle.head()).exists).toBe(true);
  await handle.delete();
  await expect(stream({ url: handle.url, live: false })).rejects.toThrow();
});

test("bytes come back as they were, also as server-sent events", async () => {
  const handle = await made("bytes", "application/octet-stream");
  const bytes = Uint8Array.from({ length: 256 }, (_, each) => each);
  await handle.append(bytes);
  await handle.close();
  const read = await stream({ url: handle.url, live: false });
  expect(await read.body()).toEqual(bytes);
  const live = await stream({ url: handle.url, live: "sse" });
  expect(await live.body()).toEqual(bytes);
});

test("JSON keeps the bounds of messages", async () => {
  const handle = await made("json", "application/json");
  await handle.append(JSON.stringify({ number: 1 }));
  await handle.append(JSON.stringify([2, 3]));
  const found = await stream({ url: handle.url, live: false });
  expect(await found.json()).toEqual([{ number: 1 }, [2, 3]]);
});

test.each(["sse", "long-poll"])("a reader by %s gets history, what comes, and resumes", async (live) => {
  const handle = await made(live, "application/json");
  for (let number = 0; number < 5; number++) await handle.append(JSON.stringify(number));
  const reading = followed(handle.url, live, 10);
  for (let number = 5; number < 10; number++) await handle.append(JSON.stringify(number));
  const { items, offset } = await reading;
  expect(items).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  const resumed = followed(handle.url, live, 1, offset);
  await handle.append(JSON.stringify("next"));
  expect((await resumed).items).toEqual(["next"]);
});

test("an idempotent producer writes each message once, also after a restart", async () => {
  const handle = await made("producer", "application/json");
  const errors = [];
  const options = { autoClaim: true, onError: (error) => errors.push(error) };
  const producer = new IdempotentProducer(handle, "writer", options);
  for (let number = 0; number < 200; number++) producer.append(JSON.stringify(number));
  await producer.flush();
  await producer.restart();
  for (let number = 200; number < 300; number++) producer.append(JSON.stringify(number));
  await producer.flush();
  await producer.close(JSON.stringify("end"));
  expect(errors).toEqual([]);
  const found = await stream({ url: handle.url, live: false });
  expect(await found.json()).toEqual([...Array.from({ length: 300 }, (_, each) => each), "end"]);
});

test("a reader by server-sent events sees the end of a closed stream", async () => {
  const handle = await made("closed", "text/plain");
  await handle.append("a");
  let begun;
  const isLive = new Promise((resolve) => (begun = resolve));
  const watched = async (url, options) => {
    const answer = await fetch(url, options);
    if (!`${url}`.includes("live=sse")) return answer;
    const [taken, seen] = answer.body.tee();
    seen.getReader().read().then(begun);
    return new Response(taken, { status: answer.status, headers: answer.headers });
  };
  const found = await stream({ url: handle.url, live: "sse", fetch: watched });
  // Later than the first events, and not together with them: see the last test.
  const closing = isLive.then(() => handle.close({ body: "b" }));
  let text = "";
  for await (const part of found.textStream()) text += part;
  expect(text).toBe("ab");
  await closing;
});

test("a subscriber sees the end of a stream that closes while it begins", async () => {
  const handle = await made("closing", "text/plain");
  await handle.append("a");
  const found = await stream({ url: handle.url, live: "sse" });
  let text = "";
  const reading = new Promise((resolve) => {
    found.subscribeText(async (batch) => {
      text += batch.text;
      if (text.endsWith("b")) resolve();
    });
  });
  await handle.close({ body: "b" });
  await reading;
  expect(text).toBe("ab");
});

// Without a gateway: what its client does with an answer that has everything. docs/http.md tells
// of it; if this test fails, the client is mended, and the sentence there can go.
test("the client's textStream loses a last part that comes together with the one before", async () => {
  const control = (fields) => `event: control\ndata: ${JSON.stringify(fields)}\n\n`;
  const events = [
    "event: data\ndata: a\n\n",
    control({ streamNextOffset: "1", streamCursor: "1", upToDate: true }),
    "event: data\ndata: b\n\n",
    control({ streamNextOffset: "2", streamClosed: true }),
  ].join("");
  const headers = { "content-type": "text/event-stream" };
  const fetch = async () => new Response(events, { headers });
  const options = { url: `${base}/nowhere`, live: "sse", fetch };
  let text = "";
  for await (const part of (await stream(options)).textStream()) text += part;
  expect(text).toBe("a");
  text = "";
  const found = await stream(options);
  await new Promise((resolve) => {
    found.subscribeText(async (batch) => {
      text += batch.text;
      if (text.endsWith("b")) resolve();
    });
  });
  expect(text).toBe("ab");
});
