// What the tests share: one connection, names that no other test uses, and small checks.

import assert from "node:assert/strict";
import { test } from "node:test";
import { connect } from "@nats-io/transport-node";
import { jetstream, jetstreamManager } from "@nats-io/jetstream";
import { watched } from "./public_calls.mjs";

/** No call may take longer; what waits on purpose waits for less. */
const TEST_MS = 20_000;

export const nc = await connect({ servers: process.env.NATS_URL ?? "nats://127.0.0.1:4222" });
const rawManager = await jetstreamManager(nc);
const rawClient = jetstream(nc);

export const jsm = watched("JetStreamManager", rawManager);
export const streams = watched("StreamAPI", rawManager.streams);
export const consumers = watched("ConsumerAPI", rawManager.consumers);
export const direct = watched("DirectStreamAPI", rawManager.direct);
export const js = watched("JetStreamClient", rawClient);
export const clientStreams = watched("Streams", rawClient.streams);
export const clientConsumers = watched("Consumers", rawClient.consumers);
export { rawClient, rawManager };

let count = 0;

/** Return a name that no other test has. */
export function unique(prefix = "T") {
  count += 1;
  return `${prefix}${process.pid}_${count}`;
}

export function check(name, body) {
  test(name, { timeout: TEST_MS }, body);
}

/** Make a stream with the subjects `<name>.>`, and remove it after the body. */
export async function withStream(config, body) {
  const name = unique();
  await streams.add({ name, subjects: [`${name}.>`], ...config });
  try {
    await body(name);
  } finally {
    await rawManager.streams.delete(name);
  }
}

/** Publish texts to subjects of a stream: `fill("S", {a: ["1", "2"], b: ["3"]})`. */
export async function fill(name, bySubject) {
  const acks = [];
  for (const [subject, texts] of Object.entries(bySubject)) {
    for (const text of texts) acks.push(await js.publish(`${name}.${subject}`, text));
  }
  return acks;
}

/** Return what an iterator gives, up to `limit`, and then stop it. */
export async function taken(iterator, limit = Infinity) {
  const found = [];
  if (limit === 0) return found;
  for await (const each of iterator) {
    found.push(each);
    if (found.length >= limit) break;
  }
  return found;
}

/** Return the error that a promise is rejected with, which must have this code of JetStream. */
export async function refused(promise, code) {
  const error = await promise.then(
    (value) => assert.fail(`not refused, but ${JSON.stringify(value)}`),
    (error) => error,
  );
  if (code !== undefined) assert.equal(error.code, code, String(error));
  return error;
}

/** Return once `condition` is true. */
export async function until(condition, what) {
  const giveUpAt = Date.now() + 10_000;
  while (!(await condition())) {
    assert.ok(Date.now() < giveUpAt, `still not so: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export const texts = (messages) => messages.map((message) => message.string());
export const seqs = (messages) => messages.map((message) => message.seq);
export const ms = (milliseconds) => milliseconds * 1_000_000;
