// The noise has the law of a rounded Gaussian. It cannot be seeded, so each bound is one that a right
// sampler breaks with probability below 1e-7.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { coin, roundedGaussian } from '../gaussian.js';
import { over, power, rational } from '../integers.js';

/** The probability of round(s N) = k, by Simpson's rule. */
function probability(k, s) {
  const density = (x) => Math.exp((-x * x) / (2 * s * s)) / (s * Math.sqrt(2 * Math.PI));
  const parts = 200;
  let sum = 0;
  for (let i = 0; i <= parts; i++) {
    const factor = i === 0 || i === parts ? 1 : i % 2 ? 4 : 2;
    sum += factor * density(k - 0.5 + i / parts);
  }
  return sum / (3 * parts);
}

for (const s of [0.75, 2.5]) {
  test(`noise of ${s} steps falls into each cell as often as it should`, () => {
    const draws = 40_000;
    const counts = new Map();
    for (let i = 0; i < draws; i++) {
      const k = Number(roundedGaussian(rational(s)));
      counts.set(k, (counts.get(k) ?? 0) + 1);
    }
    let [statistic, cells, rest, restDue] = [0, 0, draws, draws];
    for (let k = -20; k <= 20; k++) {
      const due = draws * probability(k, s);
      if (due < 20) continue;
      statistic += ((counts.get(k) ?? 0) - due) ** 2 / due;
      cells++;
      rest -= counts.get(k) ?? 0;
      restDue -= due;
    }
    statistic += (rest - restDue) ** 2 / Math.max(restDue, 1);
    // A chi-square of `cells` degrees of freedom exceeds this with probability below 1e-7 (Laurent & Massart 2000).
    const tail = 16.2;
    assert.ok(statistic < cells + 2 * Math.sqrt(cells * tail) + 2 * tail, `chi-square ${statistic} of ${cells}`);
  });
}

test('wide noise has mean 0 and its variance', () => {
  const [draws, s] = [20_000, 12345.678];
  let [sum, squares] = [0, 0];
  for (let i = 0; i < draws; i++) {
    const x = Number(roundedGaussian(over(rational(s), power(0)))) / s;
    sum += x;
    squares += x * x;
  }
  assert.ok(Math.abs(sum / Math.sqrt(draws)) < 5.5);
  assert.ok(Math.abs((squares - draws) / Math.sqrt(2 * draws)) < 5.5);
});

test('noise may be wider than a double can count', () => {
  const wide = over(rational(1), power(-70));
  const drawn = Array.from({ length: 40 }, () => roundedGaussian(wide));
  assert.ok(drawn.some((each) => each % 2n !== 0n)); // all 40 even: 1e-12
});

test('coins are multiples of 2^-53 below 1, and fair', () => {
  const coins = Array.from({ length: 10_000 }, coin);
  assert.ok(coins.every((each) => each >= 0 && each < 1 && Number.isInteger(each * 2 ** 53)));
  const mean = coins.reduce((sum, each) => sum + each, 0) / coins.length;
  assert.ok(Math.abs(mean - 0.5) < 5.5 / Math.sqrt(12 * coins.length));
});
