// The same bits must become the same numbers here as in every other implementation.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Refused, readRound, readStudy, reportId } from '../definitions.js';
import { messages } from '../device.js';
import { Filter, chargeOf, squaredRadius } from '../integers.js';
import { encode, wordBytes } from '../rounding.js';

const vectors = JSON.parse(readFileSync(new URL('../../../tests/golden/device.json', import.meta.url)));
const bytes = (hex) => Buffer.from(hex, 'hex');

test('studies have the hashes and the integers of the vectors', () => {
  for (const known of vectors.study_definitions) {
    const study = readStudy(bytes(known.definition));
    assert.equal(study.hash.toString('hex'), known.hash);
    assert.equal(String(study.budgetUnits), known.budget_units);
    assert.equal(String(study.baseWeight), known.base_weight);
  }
});

test('a study is refused whose integers do not follow from its budget', () => {
  const [{ definition }] = vectors.study_definitions;
  assert.throws(() => readStudy(Buffer.concat([bytes(definition), bytes('4001')])), Refused); // budget_units = 1
  assert.throws(() => readStudy(Buffer.concat([bytes(definition), bytes('f80701')])), Refused); // field 127
});

test('rounds have the hashes and the numbers of the vectors', () => {
  for (const known of vectors.round_definitions) {
    const round = readRound(bytes(known.definition), readStudy(bytes(known.study)));
    assert.equal(round.hash.toString('hex'), known.hash);
    assert.equal(String(round.weight), known.weight);
    assert.equal(String(round.largest), known.squared_radius);
    assert.equal(String(round.limit), known.word_limit);
    assert.equal(round.share, known.share_sigma);
    assert.equal(round.dimension * (round.wordType === 'INT32' ? 4 : 8), known.report_bytes);
  }
});

for (const known of vectors.refused_rounds) {
  test(`a round is refused: ${known.note}`, () => {
    assert.throws(() => readRound(bytes(known.definition), readStudy(bytes(known.study))), Refused);
  });
}

test('report ids follow from the secret and the round', () => {
  for (const known of vectors.report_ids) {
    const id = reportId(bytes(known.secret), bytes(known.round_hash));
    assert.equal(id.toString('hex'), known.report_id);
  }
});

test('words are little-endian and signed', () => {
  for (const known of vectors.word_encodings.filter((each) => each.word_type !== 'bit')) {
    const words = BigInt64Array.from(known.words.map(BigInt));
    assert.equal(wordBytes(words, known.word_type.toUpperCase()).toString('hex'), known.bytes);
  }
});

test('a filter charges, decides and keeps what the vectors say', () => {
  for (const known of vectors.charge_traces) {
    const budgetUnits = BigInt(known.budget_units);
    const mine = new Filter({ budgetUnits, policy: known.policy.toUpperCase() });
    let remaining = budgetUnits;
    for (const step of known.steps) {
      const [norm, weight] = [BigInt(step.squared_norm), BigInt(step.weight)];
      const charge = chargeOf(norm, { weight, budgetUnits });
      assert.equal(String(charge), step.charge);
      const given = mine.trySpend(norm, { weight, shrunk: step.shrunk });
      assert.equal(given ? 'CONT' : 'HALT', step.decision);
      if (given) remaining -= charge;
      assert.equal(String(remaining), step.remaining);
    }
  }
});

test('values are rounded onto the grid as the vectors say', () => {
  for (const known of vectors.roundings) {
    const largest = squaredRadius({ clip: known.clip, gridExponent: known.grid_exponent });
    const round = {
      dimension: known.value.length,
      gridExponent: known.grid_exponent,
      largest,
      promisesGrid: known.on_grid && known.radius === null,
    };
    const radius = known.radius === null ? largest : BigInt(known.radius);
    const made = encode(Float64Array.from(known.value), round, radius, known.coins);
    assert.deepEqual([...made.words].map(String), known.words);
    assert.equal(String(made.squaredNorm), known.squared_norm);
    assert.equal(made.shrunk, known.shrunk);
  }
});

test('large reports travel in chunks of 1 MiB', () => {
  for (const known of vectors.chunkings) {
    const made = [...messages({ roundHash: bytes('00'), reportId: bytes('00'), words: Buffer.alloc(known.bytes) })];
    assert.deepEqual(
      made.filter((each) => each.chunk).map((each) => each.chunk.words.length),
      known.chunks,
    );
  }
});
