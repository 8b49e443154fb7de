// Consumers: their life, pulling, acks, ordered ones, push, priority groups.

import assert from "node:assert/strict";
import { AckPolicy, DeliverPolicy, isPullConsumer, isPushConsumer } from "@nats-io/jetstream";
import { nuid } from "@nats-io/transport-node";
import { watched } from "./public_calls.mjs";
import {
  check, clientConsumers, consumers, fill, js, ms, nc, rawClient, rawManager, refused, seqs,
  streams, taken, texts, unique, until, withStream,
} from "./world.mjs";

const pulling = async (name, config = {}) => {
  const info = await consumers.add(name, { ack_policy: AckPolicy.Explicit, ...config });
  return watched("Consumer", await clientConsumers.get(name, info.name));
};

const message = (one) => watched("JsMsg", one);

check("a consumer's life: add, info, update, list, delete", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1", "2"], b: ["3"] });
    const config = {
      durable_name: "d",
      description: "first",
      ack_policy: AckPolicy.Explicit,
      ack_wait: ms(5000),
      max_deliver: 4,
      max_ack_pending: 7,
      max_waiting: 9,
      filter_subjects: [`${name}.a`, `${name}.c`],
      metadata: { team: "blue" },
      max_batch: 50,
      max_expires: ms(60_000),
      backoff: [ms(5000), ms(10_000)],
    };
    const info = await consumers.add(name, config);
    assert.deepEqual([info.name, info.stream_name, info.num_pending], ["d", name, 2]);
    const { metadata, ...others } = config;
    for (const [field, value] of Object.entries(others)) {
      assert.deepEqual(info.config[field], value, field);
    }
    assert.equal(info.config.metadata.team, metadata.team);
    const updated = await consumers.update(name, "d", { description: "second", max_deliver: 6 });
    assert.equal(updated.config.description, "second");
    assert.equal((await consumers.info(name, "d")).config.max_deliver, 6);
    await consumers.add(name, { name: "e", ack_policy: AckPolicy.None, filter_subject: `${name}.b` });
    const listed = await taken(consumers.list(name));
    assert.deepEqual(listed.map((each) => each.name), ["d", "e"]);
    assert.equal((await streams.info(name)).state.consumer_count, 2);
    assert.equal(await consumers.delete(name, "d"), true);
    const missing = await refused(consumers.info(name, "d"), 10014);
    assert.equal(missing.message, "consumer not found");
    await refused(consumers.delete(name, "d"), 10014);
  }));

check("what cannot be a consumer is refused", () =>
  withStream({}, async (name) => {
    await refused(consumers.add(unique(), { durable_name: "d" }), 10059);
    await consumers.add(name, { durable_name: "d", ack_policy: AckPolicy.Explicit });
    await refused(
      consumers.add(name, { durable_name: "d", ack_policy: AckPolicy.Explicit, max_deliver: 3 }),
      10148,
    );
    await refused(consumers.add(name, { durable_name: "x", deliver_policy: "by_start_sequence" }));
    await refused(consumers.add(name, { durable_name: "x", max_deliver: 1, backoff: [1, 2] }), 10116);
    await refused(
      consumers.add(name, { durable_name: "x", filter_subjects: [`${name}.>`, `${name}.a`] }),
      10138,
    );
  }));

check("next and fetch: messages, nothing, by bytes", () =>
  withStream({}, async (name) => {
    const acks = await fill(name, { a: ["1", '{"n":2}', "3", "4", "5"] });
    const consumer = await pulling(name, { durable_name: "d" });
    assert.ok(consumer.isPullConsumer() && !consumer.isPushConsumer());
    const first = message(await consumer.next({ expires: 5000 }));
    assert.deepEqual([first.string(), first.seq, first.subject], ["1", acks[0].seq, `${name}.a`]);
    assert.deepEqual([first.info.deliveryCount, first.info.pending], [1, 4]);
    assert.equal(first.redelivered, false);
    assert.equal(await first.ackAck(), true);
    const second = message(await consumer.next());
    assert.deepEqual(second.json(), { n: 2 });
    second.ack();
    const fetched = await taken(await consumer.fetch({ max_messages: 2, expires: 2000 }));
    assert.deepEqual(texts(fetched), ["3", "4"]);
    const bytes = await taken(await consumer.fetch({ max_bytes: 4096, expires: 1000 }));
    assert.deepEqual(texts(bytes), ["5"]);
    assert.equal(await consumer.next({ expires: 1000 }), null);
    const info = await consumer.info();
    assert.deepEqual([info.num_ack_pending, info.num_pending], [3, 0]);
    assert.equal((await consumer.info(true)).name, "d");
    assert.equal(await consumer.delete(), true);
  }));

check("acks: again, later, working, never again, and the next one", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1"] });
    const consumer = await pulling(name, { durable_name: "d", ack_wait: ms(1500) });
    message(await consumer.next()).nak();
    const again = message(await consumer.next());
    assert.deepEqual([again.seq, again.info.deliveryCount, again.redelivered], [1, 2, true]);
    const began = Date.now();
    again.nak(400);
    const later = message(await consumer.next());
    assert.ok(later.info.deliveryCount === 3 && Date.now() - began >= 350);
    const meanwhile = consumer.next({ expires: 2200 });
    for (let round = 0; round < 5; round += 1) {
      later.working();
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
    assert.equal(await meanwhile, null);
    assert.equal(await later.ackAck(), true);
    await fill(name, { a: ["2"] });
    message(await consumer.next()).term("bad");
    assert.equal(await consumer.next({ expires: 1000 }), null);
    const info = await consumer.info();
    assert.deepEqual([info.num_ack_pending, info.ack_floor.stream_seq], [0, 2]);
    await fill(name, { a: ["3", "4"] });
    const inbox = `_INBOX.${nuid.next()}`;
    const heard = taken(nc.subscribe(inbox), 1);
    message(await consumer.next()).next(inbox, { batch: 1 });
    const [next] = await heard;
    assert.equal(next.string(), "4");
  }));

check("what is not acknowledged in time comes again, so many times", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1"] });
    const consumer = await pulling(name, {
      durable_name: "d",
      ack_wait: ms(300),
      max_deliver: 2,
    });
    const counts = [];
    for (let round = 0; round < 2; round += 1) {
      counts.push((await consumer.next({ expires: 3000 })).info.deliveryCount);
    }
    assert.deepEqual(counts, [1, 2]);
    assert.equal(await consumer.next({ expires: 1000 }), null);
  }));

check("consume: an iterator and a callback, closed, with their status", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1", "2", "3"] });
    const consumer = await pulling(name, { durable_name: "d" });
    const messages = watched(
      "ConsumerMessages",
      await consumer.consume({ max_messages: 2, expires: 3000 }),
    );
    const told = [];
    void (async () => {
      for await (const each of messages.status()) told.push(each.type);
    })();
    const found = [];
    for await (const one of messages) {
      one.ack();
      found.push(one.seq);
      if (found.length === 3) await fill(name, { a: ["4"] });
      if (found.length === 4) break;
    }
    assert.deepEqual(found, [1, 2, 3, 4]);
    assert.ok(told.includes("next"));
    await messages.close();
    await messages.closed();
    const called = [];
    const other = await consumer.consume({ callback: (one) => called.push(one.seq) && one.ack() });
    await fill(name, { a: ["5", "6"] });
    await until(() => called.length === 2, "both came");
    await other.close();
    assert.deepEqual(called, [5, 6]);
  }));

check("a consumer that is deleted while somebody consumes", () =>
  withStream({}, async (name) => {
    const consumer = await pulling(name, { durable_name: "d" });
    const messages = await consumer.consume({ expires: 2000, abort_on_missing_resource: true });
    const told = [];
    void (async () => {
      for await (const each of messages.status()) told.push(each.type);
    })();
    const ended = taken(messages).catch(() => []);
    await until(async () => (await consumers.info(name, "d")).num_waiting === 1, "it pulls");
    await consumers.delete(name, "d");
    await until(() => told.includes("consumer_deleted"), "it was told");
    await messages.close();
    await ended;
  }));

check("deliver policies", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1", "2"], b: ["3"], a2: ["4"] });
    const start = (await streams.getMessage(name, { seq: 3 })).timestamp;
    const cases = [
      [{ deliver_policy: DeliverPolicy.All }, [1, 2, 3, 4]],
      [{ deliver_policy: DeliverPolicy.Last }, [4]],
      [{ deliver_policy: DeliverPolicy.StartSequence, opt_start_seq: 3 }, [3, 4]],
      [{ deliver_policy: DeliverPolicy.StartTime, opt_start_time: start }, [3, 4]],
      [{ deliver_policy: DeliverPolicy.LastPerSubject, filter_subject: `${name}.>` }, [2, 3, 4]],
      [{ deliver_policy: DeliverPolicy.New }, []],
    ];
    for (const [config, expected] of cases) {
      const consumer = await pulling(name, { ...config, ack_policy: AckPolicy.None });
      assert.equal((await consumer.info()).num_pending, expected.length, config.deliver_policy);
      const found = await taken(
        await consumer.fetch({ max_messages: Math.max(1, expected.length), expires: 1000 }),
      );
      const from = config.deliver_policy === DeliverPolicy.StartTime ? found.slice(-2) : found;
      assert.deepEqual(seqs(from), expected, config.deliver_policy);
    }
  }));

check("headers only, and an ack of all before", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1", "22", "333"] });
    const lean = await pulling(name, { ack_policy: AckPolicy.None, headers_only: true });
    const one = await lean.next();
    assert.deepEqual([one.data.length, one.headers.get("Nats-Msg-Size")], [0, "1"]);
    const all = await pulling(name, { durable_name: "all", ack_policy: AckPolicy.All });
    const messages = await taken(await all.fetch({ max_messages: 3, expires: 2000 }));
    await messages[1].ackAck();
    const info = await all.info();
    assert.deepEqual([info.ack_floor.stream_seq, info.num_ack_pending], [2, 1]);
  }));

check("a pause and its end", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1"] });
    const consumer = await pulling(name, { durable_name: "d" });
    const paused = await consumers.pause(name, "d", new Date(Date.now() + 60_000));
    assert.equal(paused.paused, true);
    assert.equal((await consumer.info()).paused, true);
    assert.equal(await consumer.next({ expires: 1000 }), null);
    assert.equal((await consumers.resume(name, "d")).paused, false);
    assert.equal((await consumer.next({ expires: 3000 })).seq, 1);
  }));

check("a reset, to the ack floor and to a seq", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1", "2", "3"] });
    const consumer = await pulling(name, { durable_name: "d" });
    for (const one of await taken(await consumer.fetch({ max_messages: 3, expires: 2000 }))) {
      if (one.seq === 1) await one.ackAck();
    }
    const reset = await consumers.reset(name, "d");
    assert.deepEqual([reset.reset_seq, reset.num_pending], [2, 2]);
    assert.equal((await consumer.next()).seq, 2);
    assert.equal((await consumers.reset(name, "d", 1)).num_pending, 3);
    assert.equal((await consumer.next()).seq, 1);
  }));

check("an ordered consumer: next, fetch, consume", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1", "2", "3"], b: ["4"] });
    const ordered = await clientConsumers.get(name, { filter_subjects: `${name}.a` });
    assert.ok(isPullConsumer(ordered));
    assert.equal((await ordered.next()).seq, 1);
    const fetched = await ordered.fetch({ max_messages: 2, expires: 2000 });
    assert.deepEqual(seqs(await taken(fetched)), [2, 3]);
    const late = await rawClient.consumers.get(name, {
      deliver_policy: DeliverPolicy.StartSequence,
      opt_start_seq: 3,
    });
    const consuming = await late.consume();
    assert.deepEqual(seqs(await taken(consuming, 2)), [3, 4]);
    await consuming.close();
  }));

check("a consumer that was told about, bound by a push, ordered push", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1", "2"] });
    const info = await consumers.add(name, { durable_name: "d", ack_policy: AckPolicy.Explicit });
    const told = clientConsumers.getConsumerFromInfo(info);
    assert.equal((await told.next()).seq, 1);

    await consumers.add(name, {
      durable_name: "p",
      ack_policy: AckPolicy.Explicit,
      deliver_subject: unique("deliver"),
      flow_control: true,
      idle_heartbeat: ms(500),
    });
    const push = watched("PushConsumer", await clientConsumers.getPushConsumer(name, "p"));
    assert.ok(push.isPushConsumer() && !push.isPullConsumer() && isPushConsumer(push));
    const messages = await push.consume();
    const heard = [];
    for await (const one of messages) {
      await one.ackAck();
      heard.push(one.seq);
      if (heard.length === 2) break;
    }
    assert.deepEqual(heard, [1, 2]);
    await until(async () => (await push.info()).ack_floor.stream_seq === 2, "both are done");
    await messages.close();
    await until(async () => !(await push.info()).push_bound, "nobody listens");

    const together = { deliver_subject: unique("deliver"), deliver_group: "workers" };
    await consumers.add(name, {
      durable_name: "g",
      ack_policy: AckPolicy.Explicit,
      deliver_policy: DeliverPolicy.New,
      ...together,
    });
    const bound = await clientConsumers.getBoundPushConsumer(together);
    const more = await bound.consume();
    await fill(name, { a: ["3"] });
    const [third] = await taken(more, 1);
    assert.equal(third.seq, 3);
    await third.ackAck();
    await more.close();
    assert.equal(await push.delete(), true);

    const ordered = await rawClient.consumers.getPushConsumer(name, {
      filter_subjects: [`${name}.a`],
      deliver_policy: DeliverPolicy.All,
    });
    const all = await ordered.consume();
    assert.deepEqual(seqs(await taken(all, 3)), [1, 2, 3]);
    await all.close();
  }));

check("a push consumer for everybody, with heartbeats and flow control", () =>
  withStream({}, async (name) => {
    const payload = new Uint8Array(100_000);
    for (let number = 0; number < 60; number += 1) await js.publish(`${name}.a`, payload);
    const ordered = await rawClient.consumers.getPushConsumer(name);
    const messages = await ordered.consume();
    const told = [];
    void (async () => {
      for await (const each of messages.status()) told.push(each.type);
    })();
    assert.equal((await taken(messages, 60)).length, 60);
    assert.ok(told.includes("flow_control"), told.join());
    await messages.close();
  }));

check("a priority group that helps out, one by order, and one pinned", () =>
  withStream({}, async (name) => {
    await fill(name, { a: ["1", "2", "3"] });
    const group = "jobs";
    const groups = (policy) => ({
      ack_policy: AckPolicy.Explicit,
      priority_groups: [group],
      priority_policy: policy,
    });
    await consumers.add(name, { durable_name: "overflow", ...groups("overflow") });
    const helper = await rawClient.consumers.get(name, "overflow");
    const few = await helper.fetch({ max_messages: 1, expires: 1000, group, min_pending: 50 });
    assert.equal((await taken(few)).length, 0);
    const enough = await helper.fetch({ max_messages: 1, expires: 2000, group, min_pending: 2 });
    assert.equal((await taken(enough)).length, 1);

    await consumers.add(name, { durable_name: "ordered", ...groups("prioritized") });
    const prioritized = await rawClient.consumers.get(name, "ordered");
    const low = await prioritized.fetch({ max_messages: 3, expires: 2000, group, priority: 1 });
    assert.equal((await taken(low)).length, 3);

    await consumers.add(name, {
      durable_name: "pinned",
      ...groups("pinned_client"),
      priority_timeout: ms(5000),
    });
    const pinned = await rawClient.consumers.get(name, "pinned");
    const messages = await pinned.consume({ max_messages: 1, group, expires: 3000 });
    const told = [];
    void (async () => {
      for await (const each of messages.status()) told.push(each.type);
    })();
    const [first] = await taken(messages, 1);
    assert.ok(first.headers.get("Nats-Pin-Id"));
    await consumers.unpin(name, "pinned", group);
    await messages.close();
    await refused(rawManager.consumers.unpin(name, "pinned", "others"));
  }));
