package main

import "time"

// part enqueues the task "t" of a queue that is moved.
func (s *scenario) part(shard string) *scenario {
	s.logs("ZADD Queue:parts0" + shard + " 1 t; HSET {Queue:parts0" + shard + "}:tasks t t")
	return s.partDone(opEnqueue, 0, 0, done)
}

// partDone records an operation on it now, which lasts so long.
func (s *scenario) partDone(what op, receipt int, lasts time.Duration, r result) *scenario {
	rec := record{Op: what, Name: "parts0", ID: "t", Version: "t", Call: s.now / ms, Return: s.now/ms + 1 + lasts, Result: r, Outcome: 1}
	if receipt != 0 {
		rec.Score, rec.Delivery = s.score(receipt), s.score(receipt)
	}
	return s.recorded(rec)
}

// partCases are about queues that are moved to other numbers of shards.
var partCases = map[string]checkCase{
	"a part is done": {newScenario().
		at(10).part(":1.2.0.0").at(20).partDone(opPart, 420, 0, done).at(30).partDone(opDequeuePart, 420, 0, done), ""},
	"a part is cancelled": {newScenario().
		at(10).part(":1.2.0.0").at(20).partDone(opPart, 420, 0, done).at(30).partDone(opCancelPart, 0, 0, done), ""},
	"a part is enqueued while it is moved to a single shard": {newScenario().
		at(10).logs("ZADD {Queue:parts0}:move:one.3 1 t; HSET {Queue:parts0}:move:one.3:tasks t t").partDone(opEnqueue, 0, 0, done).
		at(20).partDone(opPart, 420, 0, done).at(30).partDone(opDequeuePart, 420, 0, unknown), ""},
	"a part is lost": {newScenario().
		at(10).part(":1.2.0.0"), "is neither finished nor there"},
	"a part is lost after it was delivered": {newScenario().
		at(10).part(":1.2.0.0").at(20).partDone(opPart, 420, 0, done).at(30).partDone(opDequeuePart, 420, 0, refused), "is neither finished nor there"},
	"a part is lost with the server's data": {newScenario().
		at(10).part(":1.2.0.0").at(15).logs("ZADD {Queue:parts0:1.2.0.0}:move:transit 1 t").at(20).lost(1), ""},
	"a part is lost, and so is the data of another queue": {newScenario().
		at(10).part(":1.2.0.0").at(15).logs("ZADD {Queue:parts7:1.2.0.0}:move:transit 1 t").at(20).lost(1), "is neither finished nor there"},
	"a part is delivered, and was never enqueued": {newScenario().
		at(20).partDone(opPart, 420, 0, done), "never enqueued"},
	"a part comes back": {newScenario().
		at(10).part(":1.2.0.0").at(20).partDone(opPart, 420, 0, done).at(30).partDone(opDequeuePart, 420, 0, done).at(600).partDone(opPart, 1000, 0, done), "delivered again"},
	"a part that was cancelled comes back": {newScenario().
		at(10).part(":1.2.0.0").at(30).partDone(opCancelPart, 0, 0, done).at(600).partDone(opPart, 1000, 0, done), "delivered again"},
	"a part comes back, as its request to be enqueued was made twice": {newScenario().
		at(10).logs("HSET {Queue:parts0:1.2.0.0}:tasks t t").partDone(opEnqueue, 0, 300, done).
		at(20).partDone(opPart, 420, 0, done).at(30).partDone(opDequeuePart, 420, 0, done).at(600).partDone(opPart, 1000, 0, done), ""},
	"a part has two holders": {newScenario().
		at(10).part(":1.2.0.0").at(20).partDone(opPart, 420, 0, done).at(300).partDone(opPart, 700, 0, done).partDone(opDequeuePart, 700, 0, done), "held twice at once"},
	"a part has two holders, as the clock was set ahead": {newScenario().
		at(10).part(":1.2.0.0").at(20).partDone(opPart, 420, 0, done).at(200).jump(time.Hour).at(300).partDone(opPart, 700, 0, done).partDone(opDequeuePart, 700, 0, done), ""},
	"a part has another holder when its lease has ended": {newScenario().
		at(10).part(":1.2.0.0").at(20).partDone(opPart, 420, 0, done).at(430).partDone(opPart, 830, 0, done).partDone(opDequeuePart, 830, 0, done), ""},
	"a part's receipt is stale within its lease": {newScenario().
		at(10).part(":1.2.0.0").at(20).partDone(opPart, 420, 0, done).at(30).partDone(opDequeuePart, 420, 0, stale).at(500).partDone(opPart, 900, 0, done).partDone(opDequeuePart, 900, 0, done), "was stale"},
	"a part's receipt is stale, as it was cancelled": {newScenario().
		at(10).part(":1.2.0.0").at(20).partDone(opPart, 420, 0, done).at(25).partDone(opCancelPart, 0, 0, done).at(30).partDone(opDequeuePart, 420, 0, stale), ""},
	"a part's receipt is stale after its lease": {newScenario().
		at(10).part(":1.2.0.0").at(20).partDone(opPart, 420, 0, done).at(430).partDone(opDequeuePart, 420, 0, stale).at(500).partDone(opPart, 900, 0, done).partDone(opDequeuePart, 900, 0, done), ""},
	"a move that cannot be ended": {newScenario().
		at(10).part(":1.2.0.0").partDone(opCancelPart, 0, 0, done).at(800).partDone(opFinalPart, 0, 0, refused), "when everything is quiet"},
}
