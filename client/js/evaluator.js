// Evaluates an owner's data where nothing can happen to the device: in a child process, one for each round,
// which is started before the round comes and killed at a public time, whether it is done or not.
//
// Nobody waits for what it says. It writes into a file without a name, and that is looked at once. So the
// processor, the memory, the end and the words of an evaluation move no time at which this process sends.

import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { closeSync, existsSync, fstatSync, openSync, readSync, unlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const SOURCE = fileURLToPath(new URL('source.js', import.meta.url));
const READY_MS = 5000;
const LOOK_MS = 5;
const MEMORY_MIB = 512; // that it may write to
const HEAP_MIB = 256; // of that, for objects
const PROCESSOR_S = 60; // also of one whose device was killed
const FILE_BLOCKS = (8 << 24) / 512 + 1; // 2^24 doubles
const LIMITS = `-c 0,-t ${PROCESSOR_S},-d ${MEMORY_MIB << 10},-f ${FILE_BLOCKS}`.split(',').map((each) => `ulimit ${each} && `);
const COMMAND = `${LIMITS.join('')}exec "$0" "$@"`;
const FOLDER = existsSync('/dev/shm') ? '/dev/shm' : tmpdir();

/** Keeps one child ready for the next round. It reads no data before it is asked. */
export class Evaluator {
  #dataFile;
  #spare;

  constructor(dataFile) {
    this.#dataFile = dataFile;
    this.#spare = new Child(dataFile);
  }

  /** Wait until the child is ready, or for some seconds. That has nothing to do with data: it has seen none. */
  async ready() {
    for (const end = performance.now() + READY_MS; !this.#spare.isReady && performance.now() < end; ) {
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  }

  /** Ask the child for these features; read their values by `Child.taken`, once. */
  begin(names) {
    const child = this.#spare;
    child.ask(names);
    this.#spare = new Child(this.#dataFile);
    return child;
  }

  stop() {
    this.#spare.kill();
  }
}

class Child {
  #process;
  #answer = unnamed();

  constructor(dataFile) {
    const words = [process.execPath, `--max-old-space-size=${HEAP_MIB}`, SOURCE, dataFile];
    this.#process = spawn('/bin/sh', ['-c', COMMAND, ...words], { env: {}, stdio: ['pipe', this.#answer, 'ignore'] });
    this.#process.on('error', () => {}); // what cannot be started has no answer
    this.#process.stdin.on('error', () => {}); // nor what has ended
  }

  ask(names) {
    this.#process.stdin.write(`${JSON.stringify(names)}\n`);
  }

  get isReady() {
    return fstatSync(this.#answer).size > 0;
  }

  kill() {
    this.#process.kill('SIGKILL');
  }

  /** Secret: the values, if there are so many; otherwise null. To be called once, after `kill`. */
  taken(count) {
    const isWhole = fstatSync(this.#answer).size === 8 + 8 * count;
    const values = isWhole ? new Float64Array(count) : null;
    if (values) readSync(this.#answer, values, 0, values.byteLength, 8);
    closeSync(this.#answer);
    return values;
  }
}

/** A file that no other process can open by a name. */
function unnamed() {
  const path = join(FOLDER, `demur-${randomUUID()}`);
  const file = openSync(path, 'wx+', 0o600);
  unlinkSync(path);
  return file;
}
