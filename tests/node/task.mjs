// Shared by the drivers: the task as described by the tests (see tests/support/clients.py), and its tools.

import { isDeepStrictEqual } from 'node:util';

export class Task {
  constructor(plain) {
    Object.assign(this, plain);
  }

  /** Return the tool's result for a call; throw if the call is unexpected. */
  result(name, given) {
    const found = this.calls.find((call) => call.name === name && isDeepStrictEqual(call.arguments, given));
    if (!found) throw new Error(`${name}(${JSON.stringify(given)}) is not planned`);
    return found.result;
  }
}

/** Throw an error with the observed value unless the condition is true. */
export function check(truth, ...seen) {
  if (!truth) throw new Error(`unexpected: ${JSON.stringify(seen)}`);
}
