// What evaluates an owner's data, in a process of its own: node source.js DATA_FILE.
//
// It writes eight bytes once it is ready, reads one line, the names of features, writes their numbers side by side as doubles, or nothing where one
// is missing or is no list of numbers, and waits for its end. Of three names the data tell it to do worse, for
// those who try out this device: docs/device-contract.md says which.

import { readFileSync, readSync, writeSync } from 'node:fs';

const WORSE = {
  'conformance: burn': () => {
    for (;;);
  },
  'conformance: die': () => process.kill(process.pid, 'SIGKILL'),
  'conformance: eat': () => {
    for (const eaten = []; ; ) eaten.push(new Array(1 << 16).fill(0.5));
  },
};

/** The numbers of all features, side by side; null where there are none. */
function evaluate(names) {
  const data = JSON.parse(readFileSync(process.argv[2], 'utf8'));
  const numbers = [];
  for (const name of names) {
    if (!Object.hasOwn(data, name)) return null;
    WORSE[name]?.();
    const values = data[name];
    if (!Array.isArray(values) || !values.every((each) => typeof each === 'number')) return null;
    for (const each of values) numbers.push(each);
  }
  return numbers;
}

writeSync(1, Buffer.alloc(8));
const question = Buffer.alloc(1 << 18); // a definition takes at most 64 KiB
let length = 0;
while (question[length - 1] !== 10) {
  const read = readSync(0, question, length, question.length - length, null);
  if (!read) process.exit(0); // nobody asks any more
  length += read;
}
const numbers = evaluate(JSON.parse(question.toString('utf8', 0, length)));
const answer = Buffer.from(Float64Array.from(numbers ?? []).buffer);
for (let written = 0; written < answer.length; ) written += writeSync(1, answer, written);
readSync(0, question); // until this is ended, or whoever asked is gone
