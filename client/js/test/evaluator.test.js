// An evaluation is over at a public time, and whatever it did, all that comes of it is its values or nothing.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { checkSlot, reportInSlot } from '../device.js';
import { Refused } from '../definitions.js';
import { Evaluator } from '../evaluator.js';

const SLOT_MS = 400;
const DATA = {
  one: [0.5, -2],
  other: [3],
  text: ['3'],
  'conformance: burn': [1, 1],
  'conformance: die': [1, 1],
  'conformance: eat': [1, 1],
};

/** What a device is given for its report in a slot, and when. */
async function evaluated(context, names, dimension, slot = SLOT_MS) {
  const folder = mkdtempSync(join(tmpdir(), 'demur-js-'));
  context.after(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, 'data.json'), JSON.stringify(DATA));
  const evaluator = new Evaluator(join(folder, 'data.json'));
  context.after(() => evaluator.stop());
  await evaluator.ready();
  const round = { number: 1, dimension, answerAfterMs: slot, noiseSteps: { n: 1n, d: 1n }, features: names.map((name) => ({ name })) };
  const began = performance.now();
  const device = { begin: () => true, report: (_, values) => ({ values, atMs: performance.now() - began }) };
  return reportInSlot(device, round, evaluator, began);
}

test('the features of a round give their values side by side', async (context) => {
  const { values, atMs } = await evaluated(context, ['one', 'other'], 3, 1500);

  assert.deepEqual([...values], [0.5, -2, 3]);
  assert.ok(atMs >= 0.9 * 1500 - 2, `${atMs}`);
});

test('what is missing, is no number or has another size gives nothing', async (context) => {
  const asked = [[['absent'], 1], [['text'], 1], [['one'], 3], [['one', 'absent'], 2]];
  const reports = await Promise.all(asked.map(([names, dimension]) => evaluated(context, names, dimension)));

  assert.deepEqual(reports.map(({ values }) => values), [null, null, null, null]);
});

test('an evaluation that burns, dies or eats is over when its report is made, and gives nothing', async (context) => {
  const kinds = ['burn', 'die', 'eat'];
  const reports = await Promise.all(kinds.map((kind) => evaluated(context, [`conformance: ${kind}`], 2)));

  for (const { values, atMs } of reports) {
    assert.equal(values, null);
    assert.ok(atMs >= 0.9 * SLOT_MS - 2 && atMs < SLOT_MS + 2000, `${atMs}`);
  }
});

test('a slot is refused that is shorter than the owner says, or than a report takes', () => {
  const refuses = (slot, dimension, policy) => {
    try {
      checkSlot({ answerAfterMs: slot, dimension }, { shortestSlotMs: 1, noiseMs: 0, sealMs: 0, ...policy });
    } catch (error) {
      return error instanceof Refused;
    }
    return false;
  };

  // 20 ms and 1.5 times 0.025 ms for each word must fit a tenth of the slot: of 238 ms for 100 words, 575 ms for 1,000.
  const seals = { sealMs: 0.025 };
  assert.deepEqual([refuses(237, 100, seals), refuses(239, 100, seals), refuses(574, 1000, seals), refuses(577, 1000, seals)], [true, false, true, false]);
  // Noise must be drawn in four fifths of it: 20 ms and 1.5 times 0.5 ms for each of 1,000 words, in 963 ms.
  assert.deepEqual([refuses(962, 1000, { noiseMs: 0.5 }), refuses(964, 1000, { noiseMs: 0.5 })], [true, false]);
  assert.deepEqual([refuses(0, 1), refuses(999, 1, { shortestSlotMs: 1000 }), refuses(1000, 1, { shortestSlotMs: 1000 })], [true, true, false]);
});
