// From a value to integer words: onto the grid and inside the clip.

import { coin } from './gaussian.js';

/**
 * A value to words in grid steps; secret. Values that lie on the grid and inside the clip are taken as they
 * are. Others are scaled into it, then rounded up or down at random, without bias. What is not finite, or
 * breaks the promise of a round on the grid, is nothing: zeros.
 *
 * @param {Float64Array|null} value the coordinates; null where there is none
 * @param round of readRound
 * @param {bigint} radius under policy CLIP what the budget still pays for, otherwise round.largest
 * @param coins one for each coordinate
 * @returns {{words: BigInt64Array, squaredNorm: bigint, shrunk: boolean}}
 */
export function encode(value, round, radius, coins = drawCoins(round.dimension)) {
  const nothing = new BigInt64Array(round.dimension);
  const zero = { words: nothing, squaredNorm: 0n, shrunk: false };
  if (value === null || value.length !== round.dimension || !value.every(Number.isFinite)) return zero;
  const onGrid = plain(value, round);
  if (onGrid === null && round.promisesGrid) return zero;
  const whole = onGrid ?? rounded(value, round, round.largest, coins);
  const norm = squaredNorm(whole);
  const fits = radius >= round.largest || (onGrid !== null && norm <= radius);
  if (fits) return { words: whole, squaredNorm: norm, shrunk: false };
  const words = rounded(value, round, radius, coins);
  const shrunk = words.some((word, index) => word !== whole[index]);
  return { words, squaredNorm: squaredNorm(words), shrunk };
}

/** The sum of squares of words. */
export function squaredNorm(words) {
  let sum = 0n;
  for (const word of words) sum += word * word;
  return sum;
}

/** Words as bytes, little-endian. */
export function wordBytes(words, wordType) {
  const size = wordType === 'INT32' ? 4 : 8;
  const bytes = Buffer.alloc(size * words.length);
  words.forEach((word, index) => {
    if (size === 4) bytes.writeInt32LE(Number(word), 4 * index);
    else bytes.writeBigInt64LE(word, 8 * index);
  });
  return bytes;
}

/** The words of a value that lies on the grid, inside the clip; otherwise null. */
function plain(value, { gridExponent, largest }) {
  const words = new BigInt64Array(value.length);
  const reach = Math.sqrt(Number(largest)) * 1.001;
  for (let i = 0; i < value.length; i++) {
    const scaled = value[i] * 2 ** -gridExponent;
    if (!Number.isInteger(scaled) || Math.abs(scaled) > reach) return null;
    words[i] = BigInt(scaled);
  }
  return squaredNorm(words) <= largest ? words : null;
}

/** Scale a finite value into a squared norm, and round it. */
function rounded(value, { gridExponent }, radius, coins) {
  const peak = value.reduce((most, each) => Math.max(most, Math.abs(each)), 0);
  const direction = value.map((each) => each / (peak || 1));
  const norm = Math.sqrt(direction.reduce((sum, each) => sum + each * each, 0));
  const reach = Math.sqrt(Number(radius)) * (1 - 2 ** -12);
  const length = Math.min(peak * 2 ** -gridExponent * norm, reach);
  const steps = direction.map((each) => each * (length / (norm || 1)));
  const words = new BigInt64Array(value.length);
  steps.forEach((step, i) => {
    const low = Math.floor(step);
    words[i] = BigInt(low + (coins[i] < step - low ? 1 : 0));
  });
  if (squaredNorm(words) > radius) steps.forEach((step, i) => (words[i] = BigInt(Math.trunc(step))));
  return words;
}

function drawCoins(count) {
  return Float64Array.from({ length: count }, coin);
}
