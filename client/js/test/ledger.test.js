// What is in the journal outlives the process, and what was torn or damaged never frees a budget.

import assert from 'node:assert/strict';
import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { Refused, readStudy } from '../definitions.js';
import { Device, reportInSlot } from '../device.js';
import { Filter } from '../integers.js';
import { openLedger } from '../ledger.js';

const vectors = JSON.parse(readFileSync(new URL('../../../tests/golden/device.json', import.meta.url)));
const known = vectors.round_definitions[5]; // three features of one coordinate, policy RETIRE
const definition = Buffer.from(known.definition, 'hex');
const study = readStudy(Buffer.from(known.study, 'hex'));
const values = Float64Array.of(0.25, 0.5, -0.25);
const charge = { squaredNorm: '3', weight: '5', shrunk: false };
const report = { roundHash: Buffer.alloc(32, 1), reportId: Buffer.alloc(16, 2), words: Buffer.alloc(4, 3) };

function folder(context) {
  const made = mkdtempSync(join(tmpdir(), 'demur-js-'));
  context.after(() => rmSync(made, { recursive: true }));
  return made;
}

async function reopened(ledger, where) {
  ledger.close();
  return openLedger(where);
}

test('everything that was kept is there again', async (context) => {
  const where = folder(context);
  let ledger = await openLedger(where);
  const { nonce, secret } = ledger;
  ledger.keepCredential(Buffer.alloc(48, 7));
  ledger.seal(1, report, charge);
  ledger.seal(2, report, charge);
  ledger.settle(1);

  ledger = await reopened(ledger, where);

  assert.deepEqual([ledger.nonce, ledger.secret], [nonce, secret]);
  assert.deepEqual(ledger.credential, Buffer.alloc(48, 7));
  assert.deepEqual(ledger.sealed(2).words, report.words);
  assert.equal(ledger.sealed(1).words, null);
  assert.deepEqual(ledger.charges, Array(2).fill({ squaredNorm: 3n, weight: 5n, shrunk: false }));
  assert.equal(ledger.settledUpTo, 1);
  assert.equal(ledger.untrusted, false);
  ledger.close();
});

test('a torn last line is dropped, and what follows is kept', async (context) => {
  const where = folder(context);
  let ledger = await openLedger(where);
  ledger.seal(1, report, charge);
  appendFileSync(join(where, 'journal'), 'abc {"sealed": 2');

  ledger = await reopened(ledger, where);
  assert.equal(ledger.untrusted, false);
  assert.equal(ledger.sealed(2), undefined);
  ledger.seal(2, report, charge);

  ledger = await reopened(ledger, where);
  assert.equal(ledger.charges.length, 2);
  ledger.close();
});

test('a damaged journal is untrusted for ever, and its budget counts as spent', async (context) => {
  const where = folder(context);
  let ledger = await openLedger(where);
  ledger.seal(1, report, charge);
  ledger.seal(2, report, charge);
  ledger.close();
  const path = join(where, 'journal');
  writeFileSync(path, readFileSync(path, 'utf8').replace('"squaredNorm":"3"', '"squaredNorm":"1"'));

  ledger = await openLedger(where);
  assert.equal(ledger.untrusted, true);
  ledger = await reopened(ledger, where);
  assert.equal(ledger.untrusted, true);
  assert.equal(ledger.charges.length, 0); // of what was damaged nothing is believed
  const filter = new Filter(study);
  filter.exhaust();
  assert.equal(filter.trySpend(1n, { weight: 1n }), false);
  ledger.close();
});

test('a folder has one owner', async (context) => {
  const where = folder(context);
  const ledger = await openLedger(where);

  await assert.rejects(openLedger(where), /in use/);

  ledger.close();
});

test('a round is answered with the same bytes, also after a restart, until it is settled', async (context) => {
  const where = folder(context);
  let ledger = await openLedger(where);
  let device = new Device(study, ledger);
  const { round, report: nothing } = device.meet(definition);
  device.begin(round);
  const first = device.report(round, values, new BigInt64Array(values.length));
  ledger = await reopened(ledger, where);
  device = new Device(study, ledger);

  assert.equal(nothing, undefined);
  assert.deepEqual(device.meet(definition).report.words, first.words);
  assert.equal(first.words.length, known.report_bytes);
  ledger.settle(round.number);
  assert.equal(device.meet(definition).report, null);
  ledger.close();
});

test('a round that was begun and not sealed is covered after a restart, for nothing', async (context) => {
  const where = folder(context);
  let ledger = await openLedger(where);
  const { round } = new Device(study, ledger).meet(definition);
  assert.equal(new Device(study, ledger).begin(round), true);
  ledger = await reopened(ledger, where);
  const device = new Device(study, ledger);

  assert.equal(device.meet(definition).report, undefined);
  assert.equal(ledger.settledUpTo, round.number - 1); // it is asked for again
  const report = await reportInSlot(device, { ...round, answerAfterMs: 50 }, null, performance.now()); // no evaluator is asked

  assert.equal(report.words.length, known.report_bytes);
  assert.deepEqual(ledger.charges.map(({ squaredNorm }) => squaredNorm), [0n]);
  ledger.close();
});

test('another round under a number that was begun is refused', async (context) => {
  const ledger = await openLedger(folder(context));
  const device = new Device(study, ledger);
  const { round } = device.meet(definition);
  ledger.begin(round.number, Buffer.alloc(32, 9));

  assert.throws(() => device.meet(definition), Refused);
  ledger.close();
});

test('nothing secret is written out by mistake', async (context) => {
  const ledger = await openLedger(folder(context));
  const device = new Device(study, ledger);

  assert.equal(JSON.stringify({ ledger, device }), '{"ledger":"secret","device":"secret"}');
  ledger.close();
});
