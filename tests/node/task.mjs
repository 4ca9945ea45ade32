// What the drivers share: the task as the tests describe it (see tests/clients/common.py), and its tools.

import { isDeepStrictEqual } from 'node:util';

export class Task {
  constructor(plain) {
    Object.assign(this, plain);
  }

  /** What the tool gives back for a call; throws when nobody planned it. */
  result(name, given) {
    const found = this.calls.find((call) => call.name === name && isDeepStrictEqual(call.arguments, given));
    if (!found) throw new Error(`${name}(${JSON.stringify(given)}) is not planned`);
    return found.result;
  }
}

/** Throws with what was seen unless it is true. */
export function check(truth, ...seen) {
  if (!truth) throw new Error(`unexpected: ${JSON.stringify(seen)}`);
}
