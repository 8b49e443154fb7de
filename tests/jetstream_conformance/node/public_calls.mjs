// The public calls of @nats-io/jetstream, kv and obj 3.4, by the type that has them; read in their
// declarations. `watched` notes which were made, and the last test compares.

export const PUBLIC_CALLS = {
  JetStreamManager: ["getAccountInfo", "advisories", "getOptions", "jetstream"],
  StreamAPI: [
    "info", "add", "update", "purge", "delete", "list", "deleteMessage", "getMessage", "find",
    "names", "get",
  ],
  ConsumerAPI: [
    "info", "add", "update", "delete", "list", "pause", "resume", "unpin", "reset",
  ],
  DirectStreamAPI: ["getMessage", "getBatch", "getLastMessagesFor"],
  JetStreamClient: ["publish", "startBatch", "jetstreamManager", "getOptions"],
  Batch: ["add", "commit"],
  Streams: ["get"],
  Stream: [
    "info", "alternates", "best", "getConsumer", "getPushConsumer", "getMessage", "deleteMessage",
    "resetConsumer",
  ],
  Consumers: ["get", "getConsumerFromInfo", "getPushConsumer", "getBoundPushConsumer"],
  Consumer: ["next", "fetch", "consume", "info", "delete", "isPullConsumer", "isPushConsumer"],
  PushConsumer: ["consume", "info", "delete", "isPullConsumer", "isPushConsumer"],
  ConsumerMessages: ["close", "closed", "status"],
  JsMsg: ["ack", "nak", "working", "next", "term", "ackAck", "json", "string"],
  StoredMsg: ["json", "string"],
  Kvm: ["create", "open", "list"],
  KV: [
    "get", "history", "watch", "status", "keys", "create", "update", "put", "delete", "purge",
    "purgeDeletes", "destroy",
  ],
  KvEntry: ["json", "string"],
  Objm: ["create", "open", "list"],
  ObjectStore: [
    "info", "list", "get", "getBlob", "put", "putBlob", "delete", "link", "linkStore", "watch",
    "seal", "status", "update", "destroy",
  ],
};

const made = new Set();

/** Return the object as it is, but note which of its functions are called. */
export function watched(type, object) {
  return new Proxy(object, {
    get(target, name) {
      const value = Reflect.get(target, name, target);
      if (typeof value !== "function") return value;
      if (typeof name === "string") made.add(`${type}.${name}`);
      return value.bind(target);
    },
  });
}

/** Return the public calls that nobody has made. */
export function missed() {
  return Object.entries(PUBLIC_CALLS)
    .flatMap(([type, names]) => names.map((name) => `${type}.${name}`))
    .filter((call) => !made.has(call));
}
