// Package sluice is distributed locks and a delayed task queue on Redis.
//
// A lock is held by whoever knows its token, a task by whoever knows its score;
// compare-then-act, in one script, is the only way anything changes.
//
// [Locker] makes named locks that hold across processes. A lock has a TTL, so
// that a crashed holder blocks the others for that long at most, and tells its
// holder when it is lost: see [Lock.Context] and [Lock.Valid].
//
// [Queue] keeps tasks until they are due, by the server's clock, and hands each
// to one worker at a time: at least once with [Queue.Claim], at most once with
// [Queue.Pop]. [Worker] runs a function for each, retries what fails, and keeps
// what will not succeed as dead letters: see [Queue.Dead].
//
// # Errors
//
// An operation that returns nil was done. One that returns an error was not,
// unless the error is [ErrUnknown]: then a reply was lost, and the operation's
// doc says what is safe. No command is sent twice behind the caller's back, but
// where its script's header says why that is safe; a call returns within 50ms of
// the end of its context, even when Redis hangs.
//
// # What ends the promises
//
// A lock is exclusive on one Redis primary that loses no data. A failover, lost
// persistence, or a jump of the server's clock can give it to a second holder;
// so can a holder that does not look: a process that was stopped for longer than
// the TTL has to ask Valid before it goes on. What must not go wrong even then
// has to be checked where it is stored, in a conditional UPDATE for instance.
package sluice
