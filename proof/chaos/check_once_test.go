package main

import "github.com/sluice-go/sluice"

// onceTask is "t", which was enqueued once and claimed.
func onceTask() *scenario {
	return newScenario().at(10).added(onceQueue, "v", 10).at(20).leased(onceQueue, 1, 420).settledOn(onceQueue, opDelivery, "v", 420, 1, done)
}

const (
	goneOnce     = "ZREM {Queue:once}:leased t; ZREM Queue:once t; HDEL {Queue:once}:tasks t; HDEL {Queue:once}:state t"
	finishedOnce = goneOnce + "; ZADD {Queue:once}:done @@40 t"
)

// dequeued finishes it.
func (s *scenario) dequeued() *scenario { return s.settledOn(onceQueue, opDequeue, "", 420, 0, done) }

// toldOnce enqueues "t" again, with that answer.
func (s *scenario) toldOnce(o sluice.Outcome) *scenario {
	now := s.now / ms
	return s.recorded(record{Op: opEnqueue, Name: onceQueue, ID: "t", Version: "w", Call: now, Return: now + 1, Result: done, Outcome: int(o), Policy: int(sluice.DuplicatesOnce)})
}

// onceCases are about tasks that are enqueued once.
var onceCases = map[string]checkCase{
	"once: done":             {onceTask().at(40).logs(finishedOnce).dequeued().at(50).toldOnce(sluice.OutcomeDone), ""},
	"once: there":            {onceTask().at(30).toldOnce(sluice.OutcomeKept).at(40).logs(finishedOnce).dequeued(), ""},
	"once: not remembered":   {onceTask().at(40).logs(goneOnce).dequeued(), "and is not remembered"},
	"once: remembered early": {onceTask().at(30).logs("ZADD {Queue:once}:done @@30 t").at(40).logs(goneOnce).dequeued(), "and it was not finished"},
	"once: at another time":  {onceTask().at(40).logs(goneOnce + "; ZADD {Queue:once}:done @@300 t").dequeued(), "by its record"},
	"once: another attempt":  {onceTask().at(40).logs(finishedOnce + "; HSET {Queue:once}:results t 2").dequeued(), "and the record has 2"},
	"once: forgotten":        {onceTask().at(40).logs(finishedOnce).dequeued().at(60).logs("ZREM {Queue:once}:done t"), "was forgotten at"},
	"once: all forgotten":    {onceTask().at(40).logs(finishedOnce).dequeued().at(60).logs("DEL {Queue:once}:done"), "was forgotten at"},
	"once: added again": {onceTask().at(40).logs(finishedOnce).dequeued().at(60).logs("ZADD Queue:once @@60 t; HSET {Queue:once}:tasks t w").toldOnce(sluice.OutcomeAdded),
		"was done, and at"},
	"once: told too early":             {onceTask().at(30).toldOnce(sluice.OutcomeDone).at(40).logs(finishedOnce).dequeued(), "nothing had finished it"},
	"once: told, and nothing is there": {newScenario().at(30).toldOnce(sluice.OutcomeKept), "nothing had added it"},
	"once: told that it was replaced":  {onceTask().at(30).toldOnce(sluice.OutcomeUpdated).at(40).logs(finishedOnce).dequeued(), "of an enqueue that adds once"},
	"once: left":                       {onceTask(), "is not done when everything is quiet"},
	"once: finished again, after that was lost": {onceTask().at(40).logs(finishedOnce).dequeued().at(50).lost(2).
		at(55).logs(finishedOnce).settledOn(onceQueue, opDequeue, "", 420, 0, done), ""},
	"once: cut off": {onceTask().at(40).logs(finishedOnce).dequeued().at(50).lost(0), ""},
	"once: a result": {newScenario().at(10).added(onceQueue, "v", 10).at(20).leased(onceQueue, 1, 420).
		recorded(record{Process: "p", Op: opHandle, Name: onceQueue, ID: "t", Version: "v", Attempt: 1, Call: 21, Until: 30, Return: 31,
			Score: newScenario().score(420), Delivery: newScenario().score(420), Result: done}).
		at(40).logs(finishedOnce + "; HSET {Queue:once}:results t 1_p#2"), ""},
	"once: the result of another": {newScenario().at(10).added(onceQueue, "v", 10).at(20).leased(onceQueue, 1, 420).
		recorded(record{Process: "p", Op: opHandle, Name: onceQueue, ID: "t", Version: "v", Attempt: 1, Call: 21, Until: 30, Return: 31,
			Score: newScenario().score(420), Delivery: newScenario().score(420), Result: done}).
		at(40).logs(finishedOnce + "; HSET {Queue:once}:results t 1_p#7"), "with the result"},
	"remembered by a queue without a retention": {newScenario().at(10).enqueued("v", 20).claimed("v", 1, 30).
		at(40).logs("ZREM {Queue:loop}:leased t; "+gone+"; ZADD {Queue:loop}:done @@40 t").settled(opDequeue, "", 430, 0, done), "has no retention"},
}
