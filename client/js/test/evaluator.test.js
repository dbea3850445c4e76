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
  evaluator.prepare();
  const round = { number: 1, dimension, answerAfterMs: slot, features: names.map((name) => ({ name })) };
  const began = performance.now();
  const device = { begin: () => true, report: (_, values) => ({ values, atMs: performance.now() - began }) };
  return reportInSlot(device, round, evaluator, began);
}

test('the features of a round give their values side by side', async (context) => {
  const { values, atMs } = await evaluated(context, ['one', 'other'], 3);

  assert.deepEqual([...values], [0.5, -2, 3]);
  assert.ok(atMs >= 0.9 * SLOT_MS - 2, `${atMs}`);
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

test('without a slot an evaluation has a second', async (context) => {
  assert.deepEqual([...(await evaluated(context, ['other'], 1, 0)).values], [3]);
  assert.ok((await evaluated(context, ['conformance: burn'], 2, 0)).atMs >= 1000);
});

test('a slot is refused that is shorter than the owner says, or than a report takes', () => {
  const policy = { shortestSlotMs: 0, wordMs: 0.01 };
  const refuses = (slot, dimension, changed) => {
    try {
      checkSlot({ answerAfterMs: slot, dimension }, { ...policy, ...changed });
    } catch (error) {
      return error instanceof Refused;
    }
    return false;
  };

  // 20 ms and 4 times 0.01 ms for each word: a tenth of 240 ms for 100 words, of 600 ms for 1,000.
  assert.deepEqual([refuses(239, 100), refuses(241, 100), refuses(599, 1000), refuses(601, 1000)], [true, false, true, false]);
  assert.deepEqual([refuses(0, 1000), refuses(0, 1, { shortestSlotMs: 1 })], [false, true]);
  assert.deepEqual([refuses(999, 1, { shortestSlotMs: 1000 }), refuses(1000, 1, { shortestSlotMs: 1000 })], [true, false]);
});
