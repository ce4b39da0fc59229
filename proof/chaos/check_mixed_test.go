package main

import "time"

var mixedCases = map[string]checkCase{
	"a name is held plainly, then with permits, then plainly": {newScenario().at(10).logs("SET Lock:mix T PXAT @110").at(20).logs("DEL Lock:mix").
		at(30).logs("ZADD Lock:mix -3 '' @130 U; PEXPIREAT Lock:mix @130").at(40).logs("ZREM Lock:mix U").at(41).logs("DEL Lock:mix").
		at(50).logs("SET Lock:mix V PXAT @150").at(60).logs("DEL Lock:mix"), ""},
	"a permit beside a plain lock": {newScenario().at(10).logs("SET Lock:mix T PXAT @110").
		at(30).logs("ZADD Lock:mix -3 '' @130 U").at(90).logs("DEL Lock:mix"), "held plainly and with permits"},
	"healthy data is called corrupt": {newScenario().
		recorded(record{Op: opInspect, Name: "mix", Call: 10, Return: 11, Result: corrupt}), "ErrCorrupt"},
	"two believe in plain locks of a mixed name": {newScenario().
		recorded(mixed("a", 10, 50, false)).recorded(mixed("b", 20, 60, false)), "two held mix"},
	"two believe in permits of a mixed name": {newScenario().
		recorded(mixed("a", 10, 50, true)).recorded(mixed("b", 20, 60, true)), ""},
	"one believes in a plain lock beside a permit": {newScenario().
		recorded(mixed("a", 10, 50, false)).recorded(mixed("b", 20, 60, true)), "two held mix"},
	"one believes in a plain lock that was forced open": {newScenario().
		recorded(record{Process: "c", Op: opForce, Name: "mix", Call: 15, Return: 16, Result: done}).
		recorded(mixed("a", 10, 50, false)).recorded(mixed("b", 20, 60, true)), ""},
	"a lock that was forced open is said to be released": {newScenario().at(10).logs("SET Lock:mix T PXAT @110").
		at(15).logs("DEL Lock:mix").recorded(record{Process: "c", Op: opForce, Name: "mix", Call: 15, Return: 16, Result: done}).
		recorded(withToken(digest("T"), mixed("a", 10, 50, false))), "Unlock returned nil"},
	"after the time of a lock that was forced open": {newScenario().at(10).logs("SET Lock:mix T PXAT @110").
		at(15).logs("DEL Lock:mix").recorded(record{Process: "c", Op: opForce, Name: "mix", Call: 15, Return: 16, Result: done}).
		recorded(until(45, withToken(digest("T"), mixed("a", 10, 50, false)))), ""},
	"a lock that was forced open is handed over to a Do": {newScenario().at(10).logs("SET Lock:mix T PXAT @110").
		at(15).logs("DEL Lock:mix").recorded(record{Process: "c", Op: opForce, Name: "mix", Call: 15, Return: 16, Result: done}).
		recorded(withToken(digest("T"), mixed("a", 10, 50, false))).
		recorded(record{Process: "a", Op: opTake, Name: "mix", Call: 40, Return: 60, Result: lostIt}), ""},
	"another name was forced open": {newScenario().
		recorded(record{Process: "c", Op: opForce, Name: "mix1", Call: 15, Return: 16, Result: done}).
		recorded(mixed("a", 10, 50, false)).recorded(mixed("b", 20, 60, true)), "two held mix"},
}

// until returns a record with a deadline.
func until(deadline time.Duration, r record) record {
	r.Deadline = deadline
	return r
}

// mixed returns the record of a lock or permit of a mixed name that was held from from until until,
// by Do.
func mixed(process string, from, until time.Duration, permit bool) record {
	r := held(process, "", from-1, from, until, 0)
	r.Name, r.Permit, r.Token = "mix", permit, 0
	return r
}
