// What a device must never forget, in a journal: lines that are on the disk before anything follows from
// them. Each line is the hash of everything up to it, and an entry. Nothing is ever changed in place.
//
// A last line that is torn was never acted upon, so it is dropped. Any other damage makes the journal
// untrusted: what is still whole is kept, and the budget counts as spent. A journal that somebody put back
// to an older state is whole, and this device cannot tell: it keeps no counter elsewhere.

import { createHash, randomBytes } from 'node:crypto';
import { closeSync, fsyncSync, ftruncateSync, openSync, readFileSync, realpathSync, renameSync, writeSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';

const START = '0'.repeat(64);

/** Open the journal in a folder, as its only owner. */
export async function openLedger(folder) {
  const lock = await locked(realpathSync(folder));
  return new Ledger(folder, lock);
}

export class Ledger {
  #file;
  #chain = START;
  #lock;
  #begun = new Map(); // hashes of rounds, by number
  #sealed = new Map(); // by the round's number; its bytes are dropped once it is settled
  #nonce;
  #credential = null;
  #secret;
  #untrusted = false;
  #charges = [];

  constructor(folder, lock) {
    this.#lock = lock;
    const path = join(folder, 'journal');
    const text = read(path);
    const { entries, end, isWhole } = verified(text);
    this.#chain = entries.at(-1)?.chain ?? START;
    if (isWhole) {
      this.#file = openSync(path, 'a', 0o600);
      ftruncateSync(this.#file, end);
    } else {
      this.#file = openSync(`${path}.new`, 'w', 0o600);
      writeSync(this.#file, text.subarray(0, end));
      fsyncSync(this.#file);
      renameSync(`${path}.new`, path);
    }
    syncFolder(folder);
    for (const { entry } of entries) this.#apply(entry);
    if (!isWhole) this.#add({ untrusted: true });
    if (!this.#secret) {
      this.#add({ secret: randomBytes(32).toString('hex'), nonce: randomBytes(16).toString('hex') });
    }
  }

  /** Drawn and kept before anything is sent: an enrolment that is repeated says the same. */
  get nonce() {
    return Buffer.from(this.#nonce, 'hex');
  }

  /** Report ids follow from it. It never leaves the device. */
  get secret() {
    return Buffer.from(this.#secret, 'hex');
  }

  get credential() {
    return this.#credential && Buffer.from(this.#credential, 'hex');
  }

  keepCredential(credential) {
    this.#add({ credential: credential.toString('hex') });
  }

  /** Secret: whether something is missing, so that the budget counts as spent. */
  get untrusted() {
    return this.#untrusted;
  }

  /** Secret: what was tried to be spent, in order. */
  get charges() {
    return this.#charges;
  }

  /** The report under a round's number: {roundHash, reportId, words, settled}, or undefined. */
  sealed(number) {
    return this.#sealed.get(number);
  }

  /** The hash of the round that was begun under a number, or undefined. */
  begun(number) {
    return this.#begun.get(number);
  }

  /** Note that a round is begun; only when this returns may its data be read. */
  begin(number, roundHash) {
    this.#add({ begun: number, round: roundHash.toString('hex') });
  }

  /** Keep a charge and its report, in one line; only when this returns may a byte be sent. */
  seal(number, { roundHash, reportId, words }, charge) {
    this.#add({
      sealed: number,
      round: roundHash.toString('hex'),
      id: reportId.toString('hex'),
      words: words.toString('base64'),
      ...charge,
    });
  }

  /** The report will not be sent again. */
  settle(number) {
    this.#add({ settled: number });
  }

  /** The last round up to which every report is settled. */
  get settledUpTo() {
    const numbers = [...new Set([...this.#begun.keys(), ...this.#sealed.keys()])];
    const owed = numbers.filter((number) => !this.#sealed.get(number)?.settled);
    return owed.length ? Math.min(...owed) - 1 : Math.max(0, ...numbers);
  }

  close() {
    closeSync(this.#file);
    this.#lock.close();
  }

  toJSON() {
    return 'secret';
  }

  #add(entry) {
    const text = JSON.stringify(entry);
    const chain = chained(this.#chain, text);
    const line = Buffer.from(`${chain} ${text}\n`);
    for (let written = 0; written < line.length; ) written += writeSync(this.#file, line, written);
    fsyncSync(this.#file);
    this.#chain = chain;
    this.#apply(entry);
  }

  #apply(entry) {
    if (entry.secret) [this.#secret, this.#nonce] = [entry.secret, entry.nonce];
    if (entry.credential) this.#credential = entry.credential;
    if (entry.untrusted) this.#untrusted = true;
    if (entry.begun) this.#begun.set(entry.begun, Buffer.from(entry.round, 'hex'));
    if (entry.sealed) {
      this.#charges.push({
        squaredNorm: BigInt(entry.squaredNorm),
        weight: BigInt(entry.weight),
        shrunk: entry.shrunk,
      });
      this.#sealed.set(entry.sealed, {
        roundHash: Buffer.from(entry.round, 'hex'),
        reportId: Buffer.from(entry.id, 'hex'),
        words: Buffer.from(entry.words, 'base64'),
        settled: false,
      });
    }
    if (entry.settled) {
      const report = this.#sealed.get(entry.settled);
      if (report) Object.assign(report, { words: null, settled: true });
    }
  }
}

/** The entries whose chain holds, where they end, and whether nothing but a torn line follows. */
function verified(text) {
  const entries = [];
  let [chain, end] = [START, 0];
  for (;;) {
    const stop = text.indexOf(10, end);
    if (stop < 0) return { entries, end, isWhole: true };
    const [stated, entry] = split(text.subarray(end, stop).toString());
    if (stated !== chained(chain, entry)) return { entries, end, isWhole: false };
    chain = stated;
    entries.push({ chain, entry: JSON.parse(entry) });
    end = stop + 1;
  }
}

function split(line) {
  return [line.slice(0, 64), line.slice(65)];
}

function chained(before, entry) {
  return createHash('sha256').update(before).update(entry).digest('hex');
}

function read(path) {
  try {
    return readFileSync(path);
  } catch (error) {
    if (error.code === 'ENOENT') return Buffer.alloc(0);
    throw error;
  }
}

function syncFolder(folder) {
  const handle = openSync(folder, 'r');
  fsyncSync(handle);
  closeSync(handle);
}

/** One owner for each folder: an abstract socket of Linux, which ends with its process. */
function locked(folder) {
  const name = createHash('sha256').update(folder).digest('hex');
  const server = createServer();
  return new Promise((resolve, reject) => {
    server.on('error', () => reject(new Error(`${folder} is in use by another device, or this is not Linux`)));
    server.listen({ path: `\0demur-${name}` }, () => resolve(server.unref()));
  });
}
