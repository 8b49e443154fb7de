// Numbers, sizes and times for people, always in the same width and words.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const two = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

export const NOTHING = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return known(value) ? whole.format(value) : NOTHING;
}

export function rate(value) {
  if (!known(value)) return NOTHING;
  return value !== 0 && Math.abs(value) < 10 ? one.format(value) : whole.format(value);
}

/** A pair of number and unit: 1.4, "MiB". */
export function sizeParts(value) {
  if (!known(value)) return [NOTHING, ""];
  let amount = value;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(amount) < 1024 || unit === "TiB") {
      return [unit === "B" ? whole.format(amount) : one.format(amount), unit];
    }
    amount /= 1024;
  }
  return [NOTHING, ""];
}

export function size(value) {
  return sizeParts(value).join(" ").trim();
}

/** A pair of number and unit of a duration in seconds. */
export function durationParts(seconds) {
  if (!known(seconds)) return [NOTHING, ""];
  if (seconds === 0) return ["0", "ms"];
  if (seconds < 0.001) return [whole.format(seconds * 1e6), "µs"];
  if (seconds < 1) return [seconds < 0.1 ? one.format(seconds * 1e3) : whole.format(seconds * 1e3), "ms"];
  if (seconds < 120) return [one.format(seconds), "s"];
  if (seconds < 7200) return [whole.format(seconds / 60), "min"];
  if (seconds < 172800) return [whole.format(seconds / 3600), "h"];
  return [whole.format(seconds / 86400), "days"];
}

export function duration(seconds) {
  return durationParts(seconds).join(" ").trim();
}

export function dollars(value) {
  if (!known(value)) return NOTHING;
  if (value > 0 && value < 0.01) return "< $0.01";
  return `$${two.format(value)}`;
}

export function percent(ratio) {
  return known(ratio) ? `${one.format(ratio * 100)} %` : NOTHING;
}

export function clock(milliseconds) {
  const at = new Date(milliseconds);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

export function moment(milliseconds) {
  if (!known(milliseconds) || Math.abs(milliseconds) > 8.64e15) return NOTHING;
  const at = new Date(milliseconds);
  const day = [at.getFullYear(), at.getMonth() + 1, at.getDate()].map((part) => String(part).padStart(2, "0"));
  return `${day.join("-")} ${clock(milliseconds)}`;
}

/** The end of an id, which is enough to tell two apart: they begin with a time. */
export function short(id) {
  return id.length > 10 ? `…${id.slice(-7)}` : id;
}

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

/** Text of a store with what would be invisible, or turn its neighbours around, made visible. */
export function visible(text) {
  return text.replaceAll(CONTROL, (found) => {
    const code = found.codePointAt(0);
    return code < 0x20 ? String.fromCodePoint(0x2400 + code) : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}
