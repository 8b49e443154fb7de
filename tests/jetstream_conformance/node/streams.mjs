// Streams: their configuration and state, reading and removing messages, limits, advisories.

import assert from "node:assert/strict";
import { DiscardPolicy, RetentionPolicy } from "@nats-io/jetstream";
import { watched } from "./public_calls.mjs";
import {
  check, clientStreams, consumers, direct, fill, js, jsm, ms, nc, rawClient, rawManager, refused,
  seqs, streams, taken, texts, unique, until, withStream,
} from "./world.mjs";

check("account information, options and the manager of a client", async () => {
  const info = await jsm.getAccountInfo();
  assert.ok(info.streams >= 0 && info.api.level >= 1 && "max_storage" in info.limits);
  assert.equal(jsm.getOptions().apiPrefix, "$JS.API");
  assert.equal(js.getOptions().apiPrefix, "$JS.API");
  assert.equal(rawClient.apiPrefix, "$JS.API");
  assert.equal(jsm.jetstream().apiPrefix, "$JS.API");
  const other = await js.jetstreamManager();
  assert.deepEqual((await other.getAccountInfo()).limits, info.limits);
});

check("a stream's configuration comes back, with defaults, and can be updated", async () => {
  const name = unique();
  const asked = {
    name,
    subjects: [`${name}.a.*`, `${name}.b`],
    description: "a test",
    max_msgs: 100,
    max_bytes: 100_000,
    max_age: ms(3_600_000),
    max_msg_size: 1000,
    max_msgs_per_subject: 10,
    max_consumers: 5,
    duplicate_window: ms(60_000),
    discard: DiscardPolicy.New,
    allow_rollup_hdrs: true,
    allow_direct: true,
    allow_msg_ttl: true,
    first_seq: 10,
    metadata: { team: "blue" },
    compression: "s2",
    consumer_limits: { max_ack_pending: 50, inactive_threshold: ms(10_000) },
    republish: { src: `${name}.b`, dest: `copy.${name}.b`, headers_only: true },
    subject_transform: { src: `${name}.a.*`, dest: `${name}.a.{{wildcard(1)}}` },
  };
  const info = await streams.add(asked);
  try {
    const { metadata, ...others } = asked;
    for (const [field, value] of Object.entries(others)) {
      assert.deepEqual(info.config[field], value, field);
    }
    assert.equal(info.config.metadata.team, metadata.team);
    assert.equal(info.config.num_replicas, 1);
    assert.equal(info.config.retention, "limits");
    assert.equal(info.config.storage, "file");
    assert.equal(info.state.first_seq, 10);
    assert.equal(info.state.last_seq, 9);
    const updated = await streams.update(name, { max_msgs: 200, description: "another" });
    assert.equal(updated.config.max_msgs, 200);
    assert.equal(updated.config.description, "another");
    assert.equal((await streams.info(name)).config.max_msgs, 200);
    await refused(streams.update(name, { storage: "memory" }));
  } finally {
    assert.equal(await streams.delete(name), true);
  }
});

check("names, lists and finding by a subject", () =>
  withStream({}, async (name) => {
    await withStream({}, async (other) => {
      const names = await taken(streams.names());
      assert.ok(names.includes(name) && names.includes(other));
      assert.deepEqual(await taken(streams.names(`${name}.x`)), [name]);
      assert.deepEqual(await streams.names(`${other}.>`).next(), [other]);
      const listed = await taken(streams.list());
      assert.ok(listed.some((info) => info.config.name === other));
      const [one] = await streams.list(`${name}.x`).next();
      assert.equal(one.config.name, name);
      assert.equal(await streams.find(`${name}.anything`), name);
      await refused(streams.find("nobody.has.this"));
    });
  }));

check("a stream that is not there, is there already, or overlaps another", () =>
  withStream({}, async (name) => {
    const missing = await refused(streams.info(unique()), 10059);
    assert.equal(missing.message, "stream not found");
    await refused(streams.delete(unique()), 10059);
    await refused(streams.update(unique(), {}), 10059);
    await refused(streams.add({ name, subjects: ["other.>"] }), 10058);
    await refused(streams.add({ name: unique(), subjects: [`${name}.x`] }), 10065);
    const again = await streams.add({ name, subjects: [`${name}.>`] });
    assert.equal(again.config.name, name);
    await assert.rejects(streams.add({ name: "a.b", subjects: ["x"] }));
  }));

check("messages are read by seq and by subject, and deleted", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1", "2"], b: ['{"n":3}'] });
    const second = watched("StoredMsg", await streams.getMessage(name, { seq: 2 }));
    assert.equal(second.string(), "2");
    assert.equal(second.subject, `${name}.a`);
    assert.ok(Math.abs(second.time.getTime() - Date.now()) < 60_000);
    const last = watched(
      "StoredMsg",
      await streams.getMessage(name, { last_by_subj: `${name}.b` }),
    );
    assert.deepEqual(last.json(), { n: 3 });
    assert.equal(await streams.deleteMessage(name, 2), true);
    assert.equal(await streams.deleteMessage(name, 1, false), true);
    assert.equal(await streams.getMessage(name, { seq: 2 }), null);
    assert.equal(await streams.getMessage(name, { last_by_subj: `${name}.c` }), null);
    await refused(streams.deleteMessage(name, 2));
    const { state } = await streams.info(name, { deleted_details: true });
    assert.deepEqual([state.messages, state.first_seq, state.last_seq], [1, 3, 3]);
  }));

check("state counts subjects and deleted messages", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1", "2", "3"], "b.c": ["4"] });
    await streams.deleteMessage(name, 2);
    const info = await streams.info(name, { deleted_details: true, subjects_filter: `${name}.>` });
    assert.deepEqual(info.state.deleted, [2]);
    assert.equal(info.state.num_deleted, 1);
    assert.equal(info.state.num_subjects, 2);
    assert.deepEqual(info.state.subjects, { [`${name}.a`]: 2, [`${name}.b.c`]: 1 });
    const filtered = await streams.info(name, { subjects_filter: `${name}.b.*` });
    assert.deepEqual(filtered.state.subjects, { [`${name}.b.c`]: 1 });
  }));

check("purges: all, by subject, up to a seq, and all but some", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1", "2", "3"], b: ["4", "5"] });
    assert.equal((await streams.purge(name, { filter: `${name}.a`, keep: 1 })).purged, 2);
    assert.equal((await streams.purge(name, { seq: 4 })).purged, 1);
    assert.equal((await streams.purge(name, { filter: `${name}.b`, seq: 5 })).purged, 1);
    await fill(name, { a: ["6", "7"] });
    assert.equal((await streams.purge(name, { keep: 1 })).purged, 2);
    assert.equal((await streams.purge(name, { filter: `${name}.a` })).purged, 1);
    const purged = await streams.purge(name);
    assert.deepEqual([purged.success, purged.purged], [true, 0]);
    const { state } = await streams.info(name);
    assert.deepEqual([state.messages, state.first_seq, state.last_seq], [0, 8, 7]);
  }));

check("direct gets: by seq, last and next of a subject, by time", () =>
  withStream({ allow_direct: true }, async (name) => {
    await fill(name, { a: ["1", "2"], b: ["3"] });
    await direct.getMessage(name, { seq: 2 }).then((message) => {
      assert.deepEqual([message.string(), message.subject], ["2", `${name}.a`]);
    });
    const last = await direct.getMessage(name, { last_by_subj: `${name}.a` });
    assert.equal(last.seq, 2);
    const next = await direct.getMessage(name, { next_by_subj: `${name}.*`, seq: 3 });
    assert.equal(next.string(), "3");
    const first = await direct.getMessage(name, { start_time: new Date(0) });
    assert.equal(first.seq, 1);
    assert.equal(await direct.getMessage(name, { seq: 9 }), null);
  }));

check("direct gets of many, and of the last of many subjects", () =>
  withStream({ allow_direct: true }, async (name) => {
    await fill(name, { a: ["1", "2"], b: ["3"], c: ["4"] });
    const batch = await taken(await direct.getBatch(name, { seq: 2, batch: 2 }));
    assert.deepEqual(texts(batch), ["2", "3"]);
    assert.equal(batch[0].pending, 2);
    const ofOne = await direct.getBatch(name, { seq: 1, batch: 10, next_by_subj: `${name}.a` });
    assert.deepEqual(seqs(await taken(ofOne)), [1, 2]);
    const since = await direct.getBatch(name, { start_time: new Date(0), batch: 1 });
    assert.deepEqual(seqs(await taken(since)), [1]);
    const lasts = await direct.getLastMessagesFor(name, { multi_last: [`${name}.>`] });
    assert.deepEqual(texts(await taken(lasts)), ["2", "3", "4"]);
    const earlier = await direct.getLastMessagesFor(name, {
      multi_last: [`${name}.a`, `${name}.b`],
      up_to_seq: 1,
    });
    assert.deepEqual(seqs(await taken(earlier)), [1]);
  }));

check("a stream as an object", () =>
  withStream({ allow_direct: true }, async (name) => {
    await fill(name, { a: ["1", "2"] });
    await streams.get(name).then((each) => assert.equal(each.name, name));
    const stream = watched("Stream", await clientStreams.get(name));
    assert.equal((await stream.info()).state.messages, 2);
    assert.equal((await stream.info(true)).config.name, name);
    const narrow = await stream.info(false, { subjects_filter: ">" });
    assert.deepEqual(narrow.state.subjects, { [`${name}.a`]: 2 });
    assert.deepEqual(await stream.alternates(), []);
    assert.equal((await stream.best()).name, name);
    assert.equal((await stream.getMessage({ seq: 1 })).string(), "1");
    assert.equal(await stream.deleteMessage(1), true);
    await consumers.add(name, { durable_name: "pulls", ack_policy: "explicit" });
    const pulls = await stream.getConsumer("pulls");
    assert.equal((await pulls.next()).seq, 2);
    assert.equal((await stream.resetConsumer("pulls")).reset_seq, 2);
    const push = { durable_name: "pushes", deliver_subject: unique("deliver") };
    await consumers.add(name, push);
    assert.ok((await stream.getPushConsumer("pushes")).isPushConsumer());
    await refused(clientStreams.get(unique()), 10059);
  }));

check("limits: discard new, sizes, per subject", () =>
  withStream(
    {
      max_msgs: 3,
      discard: DiscardPolicy.New,
      max_msgs_per_subject: 1,
      discard_new_per_subject: true,
      max_msg_size: 10,
    },
    async (name) => {
      await fill(name, { a: ["1"], b: ["2"] });
      await refused(js.publish(`${name}.a`, "again"), 10077);
      await refused(js.publish(`${name}.c`, "x".repeat(11)), 10054);
      await fill(name, { c: ["3"] });
      const full = await refused(js.publish(`${name}.d`, "4"), 10077);
      assert.match(full.message, /maximum messages exceeded/);
    },
  ));

check("limits: the oldest go, of a subject, by number and by age", () =>
  withStream({ max_msgs: 3, max_msgs_per_subject: 2, max_age: ms(1000) }, async (name) => {
    await fill(name, { a: ["1", "2", "3"], b: ["4", "5"] });
    const { state } = await streams.info(name);
    assert.deepEqual([state.messages, state.first_seq], [3, 3]);
    await until(async () => (await streams.info(name)).state.messages === 0, "they are too old");
  }));

check("messages with a ttl go, and leave a marker", () =>
  withStream(
    { allow_msg_ttl: true, subject_delete_marker_ttl: ms(2000), allow_rollup_hdrs: true },
    async (name) => {
      // A ttl is raised to that of markers.
      await js.publish(`${name}.a`, "short", { ttl: "1s" });
      let marker;
      await until(async () => {
        marker = await streams.getMessage(name, { seq: 2 });
        return marker !== null;
      }, "there is a marker");
      assert.equal(marker.header.get("Nats-Marker-Reason"), "MaxAge");
      assert.equal(await streams.getMessage(name, { seq: 1 }), null);
    },
  ));

check("republished messages and transformed subjects", async () => {
  const copies = unique("copies");
  const heard = taken(nc.subscribe(`${copies}.>`), 1);
  await nc.flush();
  await withStream({ republish: { src: ">", dest: `${copies}.>` } }, async (name) => {
    await js.publish(`${name}.a`, "text");
    const [copy] = await heard;
    assert.equal(copy.subject, `${copies}.${name}.a`);
    assert.equal(copy.headers.get("Nats-Sequence"), "1");
    assert.equal(copy.headers.get("Nats-Subject"), `${name}.a`);
  });
  const name = unique();
  await streams.add({
    name,
    subjects: [`${name}.*`],
    subject_transform: { src: `${name}.*`, dest: `${name}.new.{{wildcard(1)}}` },
  });
  await js.publish(`${name}.a`, "text");
  assert.equal((await streams.getMessage(name, { seq: 1 })).subject, `${name}.new.a`);
  await streams.delete(name);
});

check("a work queue and a stream of interest forget what is acknowledged", async () => {
  for (const retention of [RetentionPolicy.Workqueue, RetentionPolicy.Interest]) {
    await withStream({ retention }, async (name) => {
      await consumers.add(name, { durable_name: "only", ack_policy: "explicit" });
      await fill(name, { a: ["1", "2"] });
      const consumer = await rawClient.consumers.get(name, "only");
      await (await consumer.next()).ackAck();
      const left = async () => (await streams.info(name)).state.messages;
      await until(async () => (await left()) === 1, `${retention} keeps the other`);
    });
  }
});

check("denied deletes and purges, and a sealed stream", () =>
  withStream({ deny_delete: true, deny_purge: true }, async (name) => {
    await fill(name, { a: ["1"] });
    await refused(streams.deleteMessage(name, 1));
    await refused(streams.purge(name));
    await streams.update(name, { sealed: true });
    assert.equal((await streams.info(name)).config.sealed, true);
    await refused(js.publish(`${name}.a`, "2"), 10109);
  }));

check("advisories tell what happens to streams and consumers", async () => {
  const heard = [];
  const advisories = jsm.advisories();
  const listening = (async () => {
    for await (const advisory of advisories) heard.push(advisory);
  })();
  await nc.flush();
  await withStream({}, async (name) => {
    await consumers.add(name, { durable_name: "short", ack_policy: "explicit", max_deliver: 1 });
    await fill(name, { a: ["1"] });
    const consumer = await rawClient.consumers.get(name, "short");
    (await consumer.next()).term("enough");
    const of = (kind) =>
      heard.find((each) => each.kind === kind && JSON.stringify(each.data).includes(name));
    await until(() => of("terminated") !== undefined, "a message was terminated");
    assert.equal(of("terminated").data.reason, "enough");
    assert.equal(of("stream_action").data.action, "create");
    assert.equal(of("consumer_action").data.consumer, "short");
  });
  void listening;
});
