// Publishing: acks, ids, expectations, roll-ups, time to live, batches.

import assert from "node:assert/strict";
import { headers } from "@nats-io/transport-node";
import { watched } from "./public_calls.mjs";
import { check, direct, fill, js, rawClient, refused, streams, unique, withStream } from "./world.mjs";

check("an ack names the stream and the seq, in the order of publishing", () =>
  withStream({}, async (name) => {
    const acks = await Promise.all(
      Array.from({ length: 200 }, (_, number) => js.publish(`${name}.a`, `${number}`)),
    );
    assert.deepEqual(acks.map((ack) => ack.seq), acks.map((_, number) => number + 1));
    assert.equal(acks[0].stream, name);
    assert.equal(acks[0].duplicate, false);
    assert.equal((await streams.getMessage(name, { seq: 200 })).string(), "199");
  }));

check("an id is stored once", () =>
  withStream({}, async (name) => {
    const first = await js.publish(`${name}.a`, "1", { msgID: "one" });
    const again = await js.publish(`${name}.a`, "1", { msgID: "one" });
    assert.deepEqual([again.seq, again.duplicate], [first.seq, true]);
    assert.equal((await streams.info(name)).state.messages, 1);
  }));

check("expectations are checked", () =>
  withStream({}, async (name) => {
    const subject = `${name}.a`;
    await js.publish(subject, "1", { msgID: "one", expect: { streamName: name } });
    await refused(js.publish(subject, "", { expect: { streamName: "other" } }), 10060);
    await js.publish(subject, "2", { expect: { lastSequence: 1 } });
    await refused(js.publish(subject, "", { expect: { lastSequence: 1 } }), 10071);
    await js.publish(subject, "3", { expect: { lastSubjectSequence: 2 } });
    await js.publish(`${name}.b`, "4", { expect: { lastSubjectSequence: 0 } });
    const wrong = await refused(
      js.publish(`${name}.b`, "", { expect: { lastSubjectSequence: 0 } }),
      10071,
    );
    assert.equal(wrong.message, "wrong last sequence: 4");
    await js.publish(`${name}.c`, "5", {
      msgID: "five",
      expect: { lastSubjectSequence: 3, lastSubjectSequenceSubject: subject },
    });
    await js.publish(subject, "6", { expect: { lastMsgID: "five" }, msgID: "six" });
    await refused(js.publish(subject, "", { expect: { lastMsgID: "five" } }), 10070);
  }));

check("headers come back, a value more than once too", () =>
  withStream({}, async (name) => {
    const block = headers();
    block.append("Colour", "red");
    block.append("Colour", "blue");
    block.set("Spaces", "a b c");
    await js.publish(`${name}.a`, "", { headers: block });
    const stored = await streams.getMessage(name, { seq: 1 });
    assert.deepEqual(stored.header.values("Colour"), ["red", "blue"]);
    assert.equal(stored.header.get("Spaces"), "a b c");
    assert.equal(stored.data.length, 0);
  }));

check("a roll-up replaces its subject, or all", () =>
  withStream({ allow_rollup_hdrs: true }, async (name) => {
    await fill(name, { a: ["1", "2"], b: ["3"] });
    const block = headers();
    block.set("Nats-Rollup", "sub");
    await js.publish(`${name}.a`, "sum", { headers: block });
    assert.equal((await streams.info(name)).state.messages, 2);
    block.set("Nats-Rollup", "all");
    await js.publish(`${name}.c`, "everything", { headers: block });
    assert.equal((await streams.info(name)).state.messages, 1);
  }));

check("a time to live needs the stream's permission", () =>
  withStream({}, async (name) => {
    await refused(js.publish(`${name}.a`, "", { ttl: "5s" }), 10166);
  }));

check("nobody listens to a subject without a stream, and retries are made", async () => {
  await refused(js.publish(unique("nobody"), "", { timeout: 2000 }));
  await refused(js.publish(unique("nobody"), "", { timeout: 2000, retries: 2 }));
});

check("large payloads: the largest by a direct get, as JSON grows them by a third", () =>
  withStream({ allow_direct: true }, async (name) => {
    const payload = new Uint8Array(1_000_000).fill(7);
    await js.publish(`${name}.a`, payload);
    assert.deepEqual(new Uint8Array((await direct.getMessage(name, { seq: 1 })).data), payload);
    const smaller = payload.subarray(0, 700_000);
    await js.publish(`${name}.a`, smaller);
    assert.deepEqual((await streams.getMessage(name, { seq: 2 })).data, smaller);
  }));

check("a batch is stored at once or not at all", () =>
  withStream({ allow_atomic: true }, async (name) => {
    const batch = watched("Batch", await js.startBatch(`${name}.a`, "1"));
    batch.add(`${name}.a`, "2");
    await batch.add(`${name}.b`, "3", { ack: true });
    assert.equal((await streams.info(name)).state.messages, 0);
    const ack = await batch.commit(`${name}.b`, "4");
    assert.deepEqual([ack.count, ack.seq, ack.stream], [4, 4, name]);
    assert.equal((await streams.info(name)).state.messages, 4);
    const wrong = await rawClient.startBatch(`${name}.a`, "5");
    const block = headers();
    block.set("Nats-Expected-Last-Subject-Sequence", "99");
    wrong.add(`${name}.b`, "6", { headers: block });
    await refused(wrong.commit(`${name}.a`, "7"));
    assert.equal((await streams.info(name)).state.messages, 4);
  }));

check("a batch needs the stream's permission", () =>
  withStream({}, async (name) => {
    await refused(rawClient.startBatch(`${name}.a`, "1"), 10174);
  }));
