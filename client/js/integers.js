// Budgets, weights and charges as exact integers: what makes a filter exact.
//
// A double is a rational number with a power of two below it, so every step here is exact, and every
// device and the collector come to the same integers.

const UNITS_LIMIT = 1n << 62n;
const RADIUS_LIMIT = 1n << 61n;
export const EXPONENT_LIMIT = 900;

/** A finite double >= 0 as numerator and denominator, both BigInt. */
export function rational(x) {
  if (!Number.isFinite(x) || x < 0) throw new RangeError(`a finite number >= 0, got ${x}`);
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, x);
  const bits = view.getBigUint64(0);
  const exponent = Number(bits >> 52n);
  const fraction = bits & ((1n << 52n) - 1n);
  const [mantissa, power] = exponent ? [fraction | (1n << 52n), exponent - 1075] : [fraction, -1074];
  return power >= 0 ? { n: mantissa << BigInt(power), d: 1n } : { n: mantissa, d: 1n << BigInt(-power) };
}

/** 2^exponent. */
export function power(exponent) {
  return exponent >= 0 ? { n: 1n << BigInt(exponent), d: 1n } : { n: 1n, d: 1n << BigInt(-exponent) };
}

export const times = (a, b) => ({ n: a.n * b.n, d: a.d * b.d });
export const over = (a, b) => ({ n: a.n * b.d, d: a.d * b.n });
export const plus = (a, b) => ({ n: a.n * b.d + b.n * a.d, d: a.d * b.d });
export const squared = (a) => times(a, a);
export const floor = (a) => a.n / a.d;
export const ceiling = (a) => -(-a.n / a.d) + (a.n % a.d ? 1n : 0n);
export const atLeast = (a, b) => a.n * b.d >= b.n * a.d;

/** The integer budget T and the weight W of one squared grid step in the base round. */
export function baseUnits({ measure, budget, baseSigma, baseGridExponent }) {
  const variance = squared(rational(baseSigma));
  const amount = rational(budget);
  const norm =
    measure === 'GDP' ? times(variance, squared(amount)) : times({ n: 2n, d: 1n }, times(variance, amount));
  const steps = floor(over(norm, power(2 * baseGridExponent)));
  if (steps < 1n || steps >= UNITS_LIMIT) throw new RangeError('the budget is no number of grid steps');
  const weight = 1n << BigInt(((UNITS_LIMIT - 1n) / steps).toString(2).length - 1);
  return { budgetUnits: weight * steps, baseWeight: weight };
}

/** The weight w of a round: what one squared grid step costs in it. */
export function roundWeight({ sigma, gridExponent }, study) {
  const ratio = squared(over(power(gridExponent), rational(sigma)));
  const base = squared(over(power(study.baseGridExponent), rational(study.baseSigma)));
  const exact = ceiling(times({ n: study.baseWeight, d: 1n }, over(ratio, base)));
  const most = study.budgetUnits + 1n;
  return exact < most ? exact : most;
}

/** R, the largest squared norm of a value in grid steps. */
export function squaredRadius({ clip, gridExponent }) {
  const radius = floor(squared(over(rational(clip), power(gridExponent))));
  if (radius < 1n || radius >= RADIUS_LIMIT) throw new RangeError('the grid does not fit the clip');
  return radius;
}

/** The noise of one device: sigma/sqrt(shares), rounded up. */
export function shareSigma(sigma, shares) {
  const target = over(squared(rational(sigma)), { n: BigInt(shares), d: 1n });
  let share = sigma / Math.sqrt(shares);
  while (!atLeast(squared(rational(share)), target)) share = nextUp(share);
  return share;
}

/** The largest magnitude of a word that a collector takes. */
export function wordLimit({ clip, gridExponent }, share) {
  const reach = plus(rational(clip), times({ n: 40n, d: 1n }, rational(share)));
  return floor(over(reach, power(gridExponent)));
}

/** What an answer costs: w z^2, or T + 1 where that is more than T. */
export function chargeOf(squaredNorm, { weight, budgetUnits }) {
  return squaredNorm > budgetUnits / weight ? budgetUnits + 1n : weight * squaredNorm;
}

/** Secret: the filter of one study. Check and charge are one step. */
export class Filter {
  #remaining;
  #refused = false;
  #budgetUnits;
  #retires;
  #clips;

  constructor({ budgetUnits, policy }) {
    this.#budgetUnits = this.#remaining = budgetUnits;
    this.#retires = policy !== 'SKIP';
    this.#clips = policy === 'CLIP';
  }

  /** The largest squared norm that the next answer may have, for policy CLIP. */
  radius({ weight, largest }) {
    if (this.#refused) return 0n;
    const most = this.#remaining / weight;
    return most < largest ? most : largest;
  }

  /** Spend if it fits; whether it did. */
  trySpend(squaredNorm, { weight, shrunk = false }) {
    const charge = chargeOf(squaredNorm, { weight, budgetUnits: this.#budgetUnits });
    const given = charge <= this.#remaining && !(this.#retires && this.#refused && charge > 0n);
    if (given) this.#remaining -= charge;
    if (!given || (shrunk && this.#clips)) this.#refused = true;
    return given;
  }

  /** Take everything that is left, for ever. */
  exhaust() {
    this.#remaining = 0n;
    this.#refused = true;
  }

  toJSON() {
    return 'secret';
  }
}

function nextUp(x) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, x);
  view.setBigUint64(0, view.getBigUint64(0) + 1n);
  return view.getFloat64(0);
}
