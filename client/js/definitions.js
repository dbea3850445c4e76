// Studies and rounds from the bytes that define them, read strictly: a field that this version does not
// know could change what is agreed to, so it is refused. Nobody serialises a definition again.

import { createHash, createHmac } from 'node:crypto';
import {
  EXPONENT_LIMIT,
  atLeast,
  baseUnits,
  floor,
  over,
  power,
  rational,
  roundWeight,
  shareSigma,
  squared,
  squaredRadius,
  wordLimit,
} from './integers.js';

/** A definition that this device does not take part in, for public reasons. */
export class Refused extends Error {}

const LARGEST_DEFINITION = 1 << 16;
const LARGEST_WORDS = 1 << 24;
const MOST_INT32 = (1n << 31n) - 1n;
const MOST_INT64 = (1n << 63n) - 1n;

const VIEWS = { 1: 'LOCAL', 2: 'AGGREGATE' };
const MEASURES = { 1: 'GDP', 2: 'ZCDP' };
const POLICIES = { 1: 'SKIP', 2: 'RETIRE', 3: 'CLIP' };
const FAMILIES = { 1: 'GAUSSIAN', 3: 'MIXED' };
const WORD_TYPES = { 1: 'INT32', 2: 'INT64' };

// Field number: name and type, as in proto/demur_proto/v1.
const PARAMETER = { 1: ['name', 'text'], 2: ['value', 'double'] };
const FEATURE = { 1: ['name', 'text'], 2: ['parameters', [PARAMETER]] };
const LINEAR = { 1: ['features', [FEATURE]] };
const STUDY = {
  1: ['name', 'text'],
  2: ['unit', 'uint32'],
  3: ['neighbour', 'uint32'],
  4: ['view', 'uint32'],
  5: ['family', 'uint32'],
  6: ['measure', 'uint32'],
  7: ['budget', 'double'],
  8: ['budgetUnits', 'uint64'],
  9: ['baseWeight', 'uint64'],
  10: ['baseSigma', 'double'],
  11: ['baseGridExponent', 'sint32'],
  12: ['policy', 'uint32'],
  13: ['horizon', 'uint32'],
  14: ['minimumCohort', 'uint32'],
  15: ['dishonest', 'uint32'],
  16: ['epsilon', 'double'],
  17: ['delta', 'double'],
  18: ['maximumDimension', 'uint32'],
};
const ROUND = {
  1: ['studyHash', 'bytes'],
  2: ['number', 'uint32'],
  3: ['dimension', 'uint32'],
  4: ['clip', 'double'],
  5: ['sigma', 'double'],
  6: ['gridExponent', 'sint32'],
  7: ['onGrid', 'bool'],
  8: ['weight', 'uint64'],
  9: ['wordType', 'uint32'],
  10: ['answerAfterMs', 'uint32'],
  11: ['closeUnixMs', 'uint64'],
  16: ['linear', LINEAR],
  17: ['histogram', 'other'],
  18: ['prefix', 'other'],
  19: ['gradient', 'other'],
  20: ['haltCount', 'other'],
};

/** A study, checked, with its definition and hash. */
export function readStudy(definition) {
  const raw = parsed(definition, STUDY);
  must(raw.unit === 1 && raw.neighbour === 1, 'another unit or neighbour');
  const study = {
    ...raw,
    view: named(VIEWS, raw.view, 'view'),
    family: named(FAMILIES, raw.family, 'mechanism family'),
    measure: named(MEASURES, raw.measure, 'measure'),
    policy: named(POLICIES, raw.policy, 'policy'),
    definition,
    hash: hashOf('demur.study.v1', definition),
  };
  must(study.budget > 0 && study.budget < Infinity, 'no budget');
  must(study.epsilon > 0 && study.epsilon < Infinity && study.delta > 0 && study.delta < 1, 'no epsilon, delta');
  must(study.baseSigma > 0 && study.baseSigma < Infinity, 'no base_sigma');
  must(Math.abs(study.baseGridExponent) <= EXPONENT_LIMIT, 'base_grid_exponent beyond 900');
  must(study.minimumCohort >= 1 && study.dishonest < study.minimumCohort, 'no cohort');
  must(study.maximumDimension >= 1 && [...study.name].length >= 1, 'no name or no dimension');
  if (study.family === 'MIXED') {
    const fits = study.measure === 'ZCDP' && study.view === 'LOCAL' && study.policy !== 'CLIP';
    must(fits, 'a mixed study of another measure, view or policy');
  }
  const units = derived(() => baseUnits(study));
  must(units.budgetUnits === study.budgetUnits, 'budget_units do not follow from the budget');
  must(units.baseWeight === study.baseWeight, 'base_weight does not follow from the budget');
  study.shares = study.view === 'AGGREGATE' ? study.minimumCohort - study.dishonest : 1;
  return study;
}

/** A linear round of a study, checked, with what follows from it. */
export function readRound(definition, study) {
  const raw = parsed(definition, ROUND);
  must(raw.studyHash.equals(study.hash), 'a round of another study');
  const kinds = ['linear', 'histogram', 'prefix', 'gradient', 'haltCount'].filter((kind) => raw[kind]);
  must(kinds.length === 1 && kinds[0] === 'linear', `this device answers linear rounds, not ${kinds}`);
  const round = {
    ...raw,
    features: raw.linear.features,
    wordType: named(WORD_TYPES, raw.wordType, 'word type'),
    definition,
    hash: hashOf('demur.round.v1', definition),
  };
  must(round.number >= 1, 'no number');
  must(!study.horizon || round.number <= study.horizon, 'beyond the horizon');
  must(round.dimension >= 1 && round.dimension <= study.maximumDimension, 'too many coordinates');
  must(round.dimension <= LARGEST_WORDS, 'a report beyond 2^24 words');
  must(round.features.length >= 1 && round.features.length <= round.dimension, 'no features, or too many');
  must(round.clip > 0 && round.clip < Infinity && round.sigma > 0 && round.sigma < Infinity, 'no clip or noise');
  must(Math.abs(round.gridExponent) <= EXPONENT_LIMIT, 'grid_exponent beyond 900');
  must(round.answerAfterMs <= 86_400_000, 'a slot beyond one day');
  derived(() => checkGrid(round));
  round.largest = derived(() => squaredRadius(round));
  round.share = derived(() => shareSigma(round.sigma, study.shares));
  const steps = over(rational(round.share), power(round.gridExponent));
  must(study.shares === 1 || atLeast(steps, { n: 8n, d: 1n }), 'a share of noise below 8 grid steps');
  round.limit = derived(() => wordLimit(round, round.share));
  must(round.limit <= (round.wordType === 'INT32' ? MOST_INT32 : MOST_INT64), 'words too narrow');
  must(round.limit * BigInt(study.minimumCohort) <= MOST_INT64, 'sums that overflow');
  must(derived(() => roundWeight(round, study)) === round.weight, 'a weight that the noise does not imply');
  round.promisesGrid = round.onGrid && study.policy !== 'CLIP';
  round.noiseSteps = steps;
  return round;
}

/** SHA-256(tag || 0 || definition). */
export function hashOf(tag, definition) {
  return createHash('sha256').update(tag).update(Buffer.of(0)).update(definition).digest();
}

/** First 16 bytes of HMAC-SHA256(device secret, round hash). */
export function reportId(secret, roundHash) {
  return createHmac('sha256', secret).update(roundHash).digest().subarray(0, 16);
}

function checkGrid({ clip, gridExponent, dimension, onGrid }) {
  const steps = over(rational(clip), power(gridExponent));
  if (onGrid) {
    must(steps.n % steps.d === 0n, 'a grid that does not divide the clip');
  } else {
    const fine = atLeast(steps, { n: 1n << 14n, d: 1n });
    must(fine && floor(squared(steps)) >= 4096n * BigInt(dimension), 'a grid too coarse for the clip');
  }
}

function must(holds, otherwise) {
  if (!holds) throw new Refused(otherwise);
}

function named(names, number, what) {
  must(number in names, `${what} ${number} is not supported by this device`);
  return names[number];
}

function derived(compute) {
  try {
    return compute();
  } catch (error) {
    if (error instanceof RangeError) throw new Refused(error.message);
    throw error;
  }
}

/** Parse a message by its table; a field or wire type that is not there is refused. */
function parsed(bytes, table) {
  must(bytes.length <= LARGEST_DEFINITION, 'a definition beyond 64 KiB');
  const made = {};
  for (const [name, type] of Object.values(table)) made[name] = empty(type);
  let at = 0;

  const varint = () => {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      must(at < bytes.length, 'a definition that breaks off');
      const byte = bytes[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) {
        must(value < 1n << 64n, 'a number beyond 64 bits');
        return value;
      }
    }
    throw new Refused('a number beyond 64 bits');
  };
  const slice = (length) => {
    must(length <= bytes.length - at, 'a definition that breaks off');
    at += length;
    return bytes.subarray(at - length, at);
  };

  while (at < bytes.length) {
    const key = varint();
    const [field, wire] = [Number(key >> 3n), Number(key & 7n)];
    must(field in table, 'a field that this device does not know');
    const [name, type] = table[field];
    must(wire === wireOf(type), 'a field of another type');
    if (wire === 0) made[name] = integer(varint(), type);
    else if (wire === 1) made[name] = slice(8).readDoubleLE();
    else {
      const length = varint();
      must(length <= BigInt(LARGEST_DEFINITION), 'a definition that breaks off');
      const part = slice(Number(length));
      if (type === 'bytes') made[name] = part;
      else if (type === 'text') made[name] = text(part);
      else if (type === 'other') made[name] = true;
      else if (Array.isArray(type)) made[name].push(parsed(part, type[0]));
      else {
        must(made[name] === null, 'a question that comes twice');
        made[name] = parsed(part, type);
      }
    }
  }
  return made;
}

function empty(type) {
  if (Array.isArray(type)) return [];
  return { text: '', bytes: Buffer.alloc(0), uint64: 0n, bool: false, double: 0, uint32: 0, sint32: 0 }[type] ?? null;
}

function wireOf(type) {
  if (type === 'double') return 1;
  return ['uint32', 'uint64', 'sint32', 'bool'].includes(type) ? 0 : 2;
}

function integer(value, type) {
  if (type === 'uint64') return value;
  must(value < 1n << 32n, 'a number beyond 32 bits');
  if (type === 'bool') return value !== 0n;
  if (type === 'uint32') return Number(value);
  return Number(value & 1n ? -(value >> 1n) - 1n : value >> 1n);
}

function text(bytes) {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw new Refused('a text that is not UTF-8');
  }
}
