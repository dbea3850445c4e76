// A demur device: it is told by its environment what to take part in, and answers linear rounds.
//
//   DEMUR_TARGET  the collector, HOST:PORT       DEMUR_TOKEN  enrols it, once
//   DEMUR_STUDY   the study's hash, hexadecimal  DEMUR_STATE  a folder of its own, which lasts
//   DEMUR_DATA    JSON: a list of numbers for each feature
//   DEMUR_LARGEST_BUDGET  the owner's policy: no study with a larger budget
//   DEMUR_SHORTEST_SLOT_MS  the owner's policy: no round with a shorter slot; 1000 if it is not set
//   DEMUR_CA      certificates that vouch for the collector; without, plaintext on this machine

import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { dirname, join } from 'node:path';
import grpc from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { Refused, readRound, readStudy, reportId } from './definitions.js';
import { Evaluator } from './evaluator.js';
import { roundedGaussian } from './gaussian.js';
import { Filter } from './integers.js';
import { openLedger } from './ledger.js';
import { encode, wordBytes } from './rounding.js';

const PROTOCOL_VERSION = 1;
const CALL_MS = 30_000;
const CHUNK_BYTES = 1 << 20;
const LARGEST_FRAMED_BYTES = CHUNK_BYTES - 16; // the words of a report that travels in one message
const LONGEST_PAUSE_MS = 30_000;
const ENDED = 0.8; // of a slot: when an evaluation is killed, and
const LAST_MS = 40; // no later than so long before the report leaves
const READY = 0.9; // of a slot: when its values are looked at, and the report is made
const SPARE_MS = 20; // that a report takes beside its words, and
const TIMES = 1.5; // how much longer a word may take than was measured
const MEASURED_WORDS = 20_000;
const KEEP_TRYING = new Set([grpc.status.UNAVAILABLE, grpc.status.CANCELLED, grpc.status.DEADLINE_EXCEEDED, grpc.status.INTERNAL]);
const SETTLED = new Set(['ACCEPTED', 'DUPLICATE', 'CONFLICT', 'ROUND_CLOSED', 'INVALID']);

const proto = join(dirname(fileURLToPath(import.meta.url)), '..', '..', 'proto');
const { Collector } = grpc.loadPackageDefinition(
  loadSync('demur_proto/v1/collector.proto', {
    includeDirs: [process.env.DEMUR_PROTO ?? proto],
    keepCase: true,
    longs: String,
    enums: String,
    oneofs: true,
  }),
).demur_proto.v1;

/** Secret: the one decision about an owner's data, and the report that follows from it. */
export class Device {
  #study;
  #ledger;
  #filter;

  constructor(study, ledger) {
    this.#study = study;
    this.#ledger = ledger;
    this.#filter = new Filter(study);
    for (const charge of ledger.charges) this.#filter.trySpend(charge.squaredNorm, charge);
    if (ledger.untrusted) this.#filter.exhaust();
  }

  /** A round, and what there is for it: a report, null where that was settled, undefined where it is to be made. */
  meet(definition) {
    const round = readRound(definition, this.#study);
    const sealed = this.#ledger.sealed(round.number);
    const known = sealed?.roundHash ?? this.#ledger.begun(round.number);
    if (known && !known.equals(round.hash)) throw new Refused('another round had this number');
    return { round, report: sealed && (sealed.settled ? null : { round, ...sealed }) };
  }

  /** Note durably that a round begins; false where it had begun before, and its data are read no more. */
  begin(round) {
    if (this.#ledger.begun(round.number)) return false;
    this.#ledger.begin(round.number, round.hash);
    return true;
  }

  /** The report to a round with this noise, sealed with its charge; without values, which is null, it is cover. */
  report(round, values, noise) {
    const clips = this.#study.policy === 'CLIP';
    const radius = clips ? this.#filter.radius(round) : round.largest;
    const { words, squaredNorm, shrunk } = encode(values, round, radius);
    const given = this.#filter.trySpend(squaredNorm, { weight: round.weight, shrunk });
    const noisy = noise.map((each, index) => (given ? words[index] : 0n) + each);
    const report = {
      roundHash: round.hash,
      reportId: reportId(this.#ledger.secret, round.hash),
      words: wordBytes(noisy, round.wordType),
    };
    const charge = { squaredNorm: String(squaredNorm), weight: String(round.weight), shrunk };
    this.#ledger.seal(round.number, report, charge);
    return { round, ...report };
  }

  toJSON() {
    return 'secret';
  }
}

/** Refuse a slot that is shorter than the owner allows, or than a report of this size takes here. */
export function checkSlot({ answerAfterMs: slot, dimension }, { shortestSlotMs, noiseMs, sealMs }) {
  if (slot < shortestSlotMs) throw new Refused(`its slot of ${slot} ms is below ${shortestSlotMs} ms`);
  const fits = (part, wordMs) => SPARE_MS + TIMES * dimension * wordMs <= part * slot;
  if (!fits(ENDED, noiseMs) || !fits(1 - READY, sealMs)) throw new Refused(`a report takes longer than its slot of ${slot} ms has room for`);
}

/** Milliseconds of processor time of a word's noise here, and of the rest of it, by a report that is thrown away. */
function measured() {
  measuredOnce(); // the first time is slower than all others
  return measuredOnce();
}

function measuredOnce() {
  const radius = 1n << 50n;
  const round = { dimension: MEASURED_WORDS, gridExponent: 0, largest: radius };
  const began = process.cpuUsage();
  const noise = noiseOf({ ...round, noiseSteps: { n: 1n << 30n, d: 1n } });
  const drawn = process.cpuUsage(began);
  const { words } = encode(new Float64Array(MEASURED_WORDS).fill(2 ** 20), round, radius);
  JSON.stringify(wordBytes(noise.map((each, index) => each + words[index]), 'INT64').toString('base64'));
  const wordMs = ({ user, system }) => (user + system) / 1000 / MEASURED_WORDS;
  const both = wordMs(process.cpuUsage(began));
  return { noiseMs: wordMs(drawn), sealMs: both - wordMs(drawn) };
}

function noiseOf({ dimension, noiseSteps }) {
  return new BigInt64Array(dimension).map(() => roundedGaussian(noiseSteps));
}

/**
 * The report to a round, made at nine tenths of its slot; secret. The evaluation is killed before, whatever became of it.
 *
 * @param {number} received when the slot began
 */
export async function reportInSlot(device, round, evaluator, received) {
  const slot = round.answerAfterMs;
  const until = (ms) => sleep(received + ms - performance.now());
  const child = device.begin(round) ? evaluator.begin(round.features.map(({ name }) => name)) : null;
  const noise = noiseOf(round); // now, since many words take longer than a tenth of the slot
  await until(Math.min(ENDED * slot, slot - LAST_MS));
  child?.kill();
  await until(READY * slot);
  return device.report(round, child && child.taken(round.dimension), noise);
}

class Agent {
  #told;
  #ledger;
  #evaluator;
  #client;
  #metadata;
  #call = null;

  constructor(told, ledger) {
    this.#told = told;
    this.#ledger = ledger;
    this.#evaluator = new Evaluator(told.data);
    this.#client = new Collector(told.target, credentialsFor(told), { 'grpc.enable_http_proxy': 0 });
  }

  /** Enrol, agree to the study, and visit for ever. */
  async run() {
    while (!this.#ledger.credential) {
      const answer = await this.#persistently('Enrol', {
        protocol_version: PROTOCOL_VERSION,
        token: this.#told.token,
        nonce: this.#ledger.nonce,
      });
      this.#ledger.keepCredential(Buffer.concat([answer.device_id, answer.secret]));
    }
    this.#metadata = new grpc.Metadata();
    this.#metadata.set('demur-credential-bin', this.#ledger.credential);
    const { definition } = await this.#persistently('GetStudy', {
      protocol_version: PROTOCOL_VERSION,
      study_hash: this.#told.study,
    });
    const study = readStudy(definition);
    if (!study.hash.equals(this.#told.study)) throw new Refused('another study than the one agreed to');
    if (study.budget > this.#told.largestBudget) throw new Refused('a budget beyond the owner\'s policy');
    const device = new Device(study, this.#ledger);
    const policy = { shortestSlotMs: this.#told.shortestSlotMs, ...measured() };
    for (let failures = 0; ; ) {
      const began = performance.now();
      await this.#visit(study, device, policy);
      failures = performance.now() - began > 1000 ? 0 : failures + 1;
      await pause(Math.min(LONGEST_PAUSE_MS, 100 * 2 ** Math.min(failures, 20)));
    }
  }

  stop() {
    this.#call?.cancel();
    this.#client.close();
    this.#evaluator.stop();
  }

  /** A call that is made again for as long as nobody knows whether it took effect. */
  async #persistently(name, request) {
    for (let failures = 0; ; failures++) {
      try {
        return await new Promise((resolve, reject) => {
          const options = { deadline: Date.now() + CALL_MS };
          const metadata = this.#metadata ?? new grpc.Metadata();
          this.#client[name](request, metadata, options, (error, answer) => (error ? reject(error) : resolve(answer)));
        });
      } catch (error) {
        if (!KEEP_TRYING.has(error.code)) throw error;
        await pause(Math.min(LONGEST_PAUSE_MS, 200 * 2 ** Math.min(failures, 20)));
      }
    }
  }

  /** One visit; it ends when the collector, or the connection, does. */
  #visit(study, device, policy) {
    const call = (this.#call = this.#client.Visit(this.#metadata));
    const owed = new Map(); // by report id, in hexadecimal digits
    let [isOpen, turn] = [true, Promise.resolve()];
    const send = (report) => {
      if (isOpen) for (const message of messages(report)) call.write(message);
    };
    const answer = async (definition) => {
      await this.#evaluator.ready(); // before the slot begins
      const received = performance.now();
      const met = device.meet(Buffer.from(definition));
      if (met.report === null) return;
      if (!met.report) checkSlot(met.round, policy);
      const report = met.report ?? (await reportInSlot(device, met.round, this.#evaluator, received));
      owed.set(report.reportId.toString('hex'), report);
      await sleep(received + met.round.answerAfterMs - performance.now());
      send(report);
    };
    const receive = (message) => {
      if (message.message === 'opened_round') {
        // One after the other, so that charges are made in the order in which the rounds came.
        turn = turn.then(() => answer(message.opened_round.definition)).catch(refuse);
      } else if (message.message === 'receipt') {
        const report = owed.get(Buffer.from(message.receipt.report_id).toString('hex'));
        if (!report) return;
        if (SETTLED.has(message.receipt.disposition.replace('DISPOSITION_', ''))) {
          owed.delete(report.reportId.toString('hex'));
          this.#ledger.settle(report.round.number);
        } else {
          pause(1000).then(() => send(report));
        }
      } // what this device does not know, it passes over
    };
    return new Promise((resolve) => {
      const end = () => {
        isOpen = false;
        turn.then(resolve);
      };
      call.on('data', receive);
      call.on('error', end);
      call.on('end', () => call.end());
      call.on('status', end);
      call.write({
        hello: { protocol_version: PROTOCOL_VERSION, study_hash: study.hash, after_round: this.#ledger.settledUpTo },
      });
    });
  }
}

/** A report as it travels: in one message, or in chunks of 1 MiB. */
export function* messages({ roundHash, reportId: id, words }) {
  const head = { round_hash: roundHash, report_id: id };
  if (words.length <= LARGEST_FRAMED_BYTES) {
    yield { report: { ...head, words } };
    return;
  }
  for (let offset = 0; offset < words.length; offset += CHUNK_BYTES) {
    yield { chunk: { ...head, offset: String(offset), words: words.subarray(offset, offset + CHUNK_BYTES) } };
  }
}

/** A round that this device will not answer, for public reasons, is passed over. */
function refuse(error) {
  if (!(error instanceof Refused)) throw error;
  console.error(`demur-device: refused a round: ${error.message}`);
}

function credentialsFor({ target, ca }) {
  if (ca) return grpc.credentials.createSsl(readFileSync(ca));
  if (!/^(127\.\d+\.\d+\.\d+|localhost|\[::1\]):\d+$/.test(target)) {
    throw new Error(`plaintext does not leave this machine: give DEMUR_CA to reach ${target}`);
  }
  return grpc.credentials.createInsecure();
}

function toldBy(environment) {
  const of = (name) => {
    if (!environment[name]) throw new Error(`${name} is not set; client/js/README.md says what to`);
    return environment[name];
  };
  const token = /^demur_token_([0-9a-f]{64})$/.exec(of('DEMUR_TOKEN'));
  if (!token || !/^[0-9a-f]{64}$/.test(of('DEMUR_STUDY'))) throw new Error('DEMUR_TOKEN or DEMUR_STUDY is none');
  const largestBudget = Number(of('DEMUR_LARGEST_BUDGET'));
  if (!(largestBudget > 0)) throw new Error('DEMUR_LARGEST_BUDGET must be a number above 0');
  const shortestSlotMs = Number(environment.DEMUR_SHORTEST_SLOT_MS ?? 1000);
  if (!(shortestSlotMs > 0)) throw new Error('DEMUR_SHORTEST_SLOT_MS must be a number above 0');
  return {
    target: of('DEMUR_TARGET'),
    token: Buffer.from(token[1], 'hex'),
    study: Buffer.from(of('DEMUR_STUDY'), 'hex'),
    state: of('DEMUR_STATE'),
    data: of('DEMUR_DATA'),
    largestBudget,
    shortestSlotMs,
    ca: environment.DEMUR_CA,
  };
}

/** Full jitter: any time up to the longest. */
function pause(longestMs) {
  return sleep(Math.random() * longestMs);
}

function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, Math.max(0, ms)));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  try {
    const told = toldBy(process.env);
    const agent = new Agent(told, await openLedger(told.state));
    process.on('SIGTERM', () => {
      agent.stop();
      process.exit(0);
    });
    await agent.run();
  } catch (error) {
    console.error(`demur-device: ${error.message}`);
    process.exit(1);
  }
}
