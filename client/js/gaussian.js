// Rounded Gaussian noise, drawn exactly: no floating point, no logarithm, no table.
//
// The law is that of round(s N), N standard normal and s a positive rational. Karney's algorithm N (2016,
// "Sampling exactly from the normal distribution", ACM TOMS 42(1), arXiv:1303.6257) gives |N| = k + x with
// an integer k and a fraction x of which only as many binary digits are drawn as are asked for. More of
// them are drawn until round(s (k + x)) is the same whatever the rest may be; so the result has the law
// itself, not one near it, if the bits are uniform.
//
// The bits are those of node:crypto, which OpenSSL's generator makes, seeded by the operating system. They
// are drawn 64 KiB at a time, and each is wiped when it is used; the ones still to be used lie in this
// process's memory.

import { randomFillSync } from 'node:crypto';

const pool = new Uint32Array(1 << 14);
let next = pool.length;

/** A uniform 32-bit number. */
function bits32() {
  if (next === pool.length) {
    randomFillSync(pool);
    next = 0;
  }
  const value = pool[next];
  pool[next++] = 0;
  return value;
}

/** A uniform integer below m; 1 <= m <= 2^31. */
function below(m) {
  const limit = 2 ** 32 - (2 ** 32 % m);
  for (;;) {
    const value = bits32();
    if (value < limit) return value % m;
  }
}

/** True with probability e^(-1/2): of a run of successes with 1/2, 1/4, 1/6 ..., an even number came. */
function halfLife() {
  let run = 1;
  while (below(2 * run) === 0) run++;
  return run % 2 === 1;
}

/** A uniform number in [0, 1): its 32-bit digits, as far as anybody has asked. */
class Fraction {
  digits = [];

  digit(index) {
    while (this.digits.length <= index) this.digits.push(bits32());
    return this.digits[index];
  }

  isBelow(other) {
    for (let index = 0; ; index++) {
      const [mine, its] = [this.digit(index), other.digit(index)];
      if (mine !== its) return mine < its;
    }
  }
}

/** True with probability exp(-x (2k + x) / (2k + 2)): algorithm B of the same paper. */
function stays(k, x) {
  let last = x;
  for (let run = 0; ; run++) {
    const z = new Fraction();
    if (!z.isBelow(last)) return run % 2 === 0;
    const which = below(2 * k + 2);
    const passes = which < 2 * k || (which === 2 * k && new Fraction().isBelow(x));
    if (!passes) return run % 2 === 0;
    last = z;
  }
}

/** |N| as [k, x]. */
function halfNormal() {
  retry: for (;;) {
    let k = 0;
    while (halfLife()) k++;
    for (let i = 0; i < k * (k - 1); i++) if (!halfLife()) continue retry;
    const x = new Fraction();
    for (let i = 0; i <= k; i++) if (!stays(k, x)) continue retry;
    return [k, x];
  }
}

/** round(s N), a BigInt; s = n/d with a power of two for d. */
export function roundedGaussian({ n, d }) {
  const [k, x] = halfNormal();
  let digits = 0n;
  let drawn = BigInt(k);
  for (let index = 0; ; index++) {
    drawn = (drawn << 32n) | BigInt(x.digit(index));
    digits += 32n;
    // s y + 1/2 for y in [drawn, drawn + 1) / 2^digits, over the denominator 2 d 2^digits.
    const below2 = d << (digits + 1n);
    const half = d << digits;
    const low = (2n * n * drawn + half) / below2;
    const high = (2n * n * (drawn + 1n) + half - 1n) / below2;
    if (low === high) return bits32() & 1 ? low : -low;
  }
}

/** A coin: uniform on the multiples of 2^-53 in [0, 1). */
export function coin() {
  return (bits32() * 2 ** 21 + (bits32() >>> 11)) * 2 ** -53;
}
