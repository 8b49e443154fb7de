import { runConformanceTests } from "@durable-streams/server-conformance-tests";

runConformanceTests({
  baseUrl: process.env.GATEWAY_URL,
  longPollTimeoutMs: 5000,
  subscriptions: false,
});
