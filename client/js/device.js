// A demur device: it is told by its environment what to take part in, and answers linear rounds.
//
//   DEMUR_TARGET  the collector, HOST:PORT       DEMUR_TOKEN  enrols it, once
//   DEMUR_STUDY   the study's hash, hexadecimal  DEMUR_STATE  a folder of its own, which lasts
//   DEMUR_DATA    JSON: a list of numbers for each feature
//   DEMUR_LARGEST_BUDGET  the owner's policy: no study with a larger budget
//   DEMUR_CA      certificates that vouch for the collector; without, plaintext on this machine

import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { dirname, join } from 'node:path';
import grpc from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { Refused, readRound, readStudy, reportId } from './definitions.js';
import { roundedGaussian } from './gaussian.js';
import { Filter } from './integers.js';
import { openLedger } from './ledger.js';
import { encode, wordBytes } from './rounding.js';

const PROTOCOL_VERSION = 1;
const CALL_MS = 30_000;
const CHUNK_BYTES = 1 << 20;
const LARGEST_FRAMED_BYTES = CHUNK_BYTES - 16; // the words of a report that travels in one message
const LONGEST_PAUSE_MS = 30_000;
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
  #data;

  constructor(study, ledger, data) {
    this.#study = study;
    this.#ledger = ledger;
    this.#data = data;
    this.#filter = new Filter(study);
    for (const charge of ledger.charges) this.#filter.trySpend(charge.squaredNorm, charge);
    if (ledger.untrusted) this.#filter.exhaust();
  }

  /** The report to a round; the same bytes ever after. Null where it was settled, or another had its number. */
  report(definition) {
    const round = readRound(definition, this.#study);
    const before = this.#ledger.sealed(round.number);
    if (before) {
      if (!before.roundHash.equals(round.hash)) throw new Refused('another round had this number');
      return before.settled ? null : { round, ...before };
    }
    const clips = this.#study.policy === 'CLIP';
    const radius = clips ? this.#filter.radius(round) : round.largest;
    const { words, squaredNorm, shrunk } = encode(this.#value(round), round, radius);
    const given = this.#filter.trySpend(squaredNorm, { weight: round.weight, shrunk });
    const noisy = new BigInt64Array(words.length);
    words.forEach((word, index) => {
      noisy[index] = (given ? word : 0n) + roundedGaussian(round.noiseSteps);
    });
    const report = {
      roundHash: round.hash,
      reportId: reportId(this.#ledger.secret, round.hash),
      words: wordBytes(noisy, round.wordType),
    };
    const charge = { squaredNorm: String(squaredNorm), weight: String(round.weight), shrunk };
    this.#ledger.seal(round.number, report, charge);
    return { round, ...report };
  }

  /** All features, one after the other; null where one is missing, or is not numbers. */
  #value(round) {
    const numbers = [];
    for (const { name } of round.features) {
      const values = Object.hasOwn(this.#data, name) ? this.#data[name] : null;
      if (!Array.isArray(values) || !values.every((each) => typeof each === 'number')) return null;
      for (const each of values) numbers.push(each);
    }
    return Float64Array.from(numbers);
  }

  toJSON() {
    return 'secret';
  }
}

class Agent {
  #told;
  #ledger;
  #client;
  #metadata;
  #call = null;

  constructor(told, ledger) {
    this.#told = told;
    this.#ledger = ledger;
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
    const device = new Device(study, this.#ledger, JSON.parse(readFileSync(this.#told.data, 'utf8')));
    for (let failures = 0; ; ) {
      const began = performance.now();
      await this.#visit(study, device);
      failures = performance.now() - began > 1000 ? 0 : failures + 1;
      await pause(Math.min(LONGEST_PAUSE_MS, 100 * 2 ** Math.min(failures, 20)));
    }
  }

  stop() {
    this.#call?.cancel();
    this.#client.close();
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
  #visit(study, device) {
    const call = (this.#call = this.#client.Visit(this.#metadata));
    const owed = new Map(); // by report id, in hexadecimal digits
    let [isOpen, turn] = [true, Promise.resolve()];
    const send = (report) => {
      if (isOpen) for (const message of messages(report)) call.write(message);
    };
    const answer = async (definition, received) => {
      const report = device.report(Buffer.from(definition));
      if (report === null) return;
      owed.set(report.reportId.toString('hex'), report);
      const slot = report.round.answerAfterMs;
      if (slot) await sleep(slot - (performance.now() - received));
      send(report);
    };
    const receive = (message, received) => {
      if (message.message === 'opened_round') {
        // One after the other, so that charges are made in the order in which the rounds came.
        turn = turn.then(() => answer(message.opened_round.definition, received)).catch(refuse);
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
      call.on('data', (message) => receive(message, performance.now()));
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
  return {
    target: of('DEMUR_TARGET'),
    token: Buffer.from(token[1], 'hex'),
    study: Buffer.from(of('DEMUR_STUDY'), 'hex'),
    state: of('DEMUR_STATE'),
    data: of('DEMUR_DATA'),
    largestBudget,
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
