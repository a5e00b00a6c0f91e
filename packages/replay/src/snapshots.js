// What a program sees of a session: new, deeply frozen objects.
"use strict";

function freeze(value) {
  if (value !== null && typeof value === "object" && !Object.isFrozen(value)) {
    Object.freeze(value);
    // A date has no members to freeze; its time can be set, so it is made anew for each snapshot.
    for (const member of Object.values(value)) freeze(member);
  }
  return value;
}

function state(read) {
  const step = read.lastStep;
  return freeze({
    ...read,
    startedAt: new Date(read.startedAt),
    lastStep: step && { ...step, cost: step.cost === null ? null : Number(step.cost) },
  });
}

module.exports = { freeze, state };
