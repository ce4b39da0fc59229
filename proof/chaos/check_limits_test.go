package main

import (
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
)

// limited gives the loop queue limits now, which a client has requested.
func (s *scenario) limited(l sluice.Limits) *scenario {
	now := s.now / ms
	s.logs("DEL {Queue:loop}:paused")
	if l != (sluice.Limits{}) {
		s.logs(fmt.Sprintf("SET {Queue:loop}:paused 0_%d_%d_%d_%d_0", l.Running, l.Rate, l.Per.Microseconds(), l.Burst))
	}
	return s.recorded(record{Op: opSetLimits, Name: loopQueue, Limits: l, Call: now, Return: now + 1, Result: done})
}

// many enqueues tasks into the loop queue, and claims each at its time.
func (s *scenario) many(claims ...int) *scenario {
	for i, at := range claims {
		id := fmt.Sprint("t", i)
		s.at(1).logs(fmt.Sprintf("ZADD Queue:loop @@1 %[1]s; HSET {Queue:loop}:tasks %[1]s %[1]s", id))
		s.recorded(record{Op: opEnqueue, Name: loopQueue, ID: id, Version: id, Call: 1, Return: 2, Result: done, Outcome: 1})
		s.at(time.Duration(at)).logs(fmt.Sprintf("ZADD {Queue:loop}:leased @@%[2]d %[1]s; ZREM Queue:loop %[1]s; ZADD Queue:loop @@%[2]d %[1]s; HSET {Queue:loop}:state %[1]s 1:@@%[2]d:", id, at+400))
		got := record{Name: loopQueue, ID: id, Version: id, Attempt: 1, Score: s.score(at + 400), Delivery: s.score(at + 400), Result: done}
		delivery, dequeue := got, got
		delivery.Op, delivery.Call, delivery.Return = opDelivery, time.Duration(at), time.Duration(at)+1
		dequeue.Op, dequeue.Call, dequeue.Return = opDequeue, 500, 502
		s.recorded(delivery).recorded(dequeue)
	}
	for i := range claims {
		s.at(501).logs(fmt.Sprintf("ZREM {Queue:loop}:leased t%[1]d; ZREM Queue:loop t%[1]d; HDEL {Queue:loop}:tasks t%[1]d; HDEL {Queue:loop}:state t%[1]d", i))
	}
	return s
}

// limitCases are about limits.
var limitCases = map[string]checkCase{
	"a rate is kept":                      {newScenario().at(0).limited(sluice.Limits{Rate: 2, Per: 100 * ms, Burst: 1}).many(10, 60, 110, 160), ""},
	"a rate is exceeded":                  {newScenario().at(0).limited(sluice.Limits{Rate: 2, Per: 100 * ms, Burst: 1}).many(10, 60, 105, 108), "tasks of loop were handed out in"},
	"a burst is exceeded":                 {newScenario().at(0).limited(sluice.Limits{Rate: 1, Per: 100 * ms, Burst: 2}).many(10, 10, 10, 10), "tasks of loop were handed out in"},
	"no more are leased than may":         {newScenario().at(0).limited(sluice.Limits{Running: 2}).many(10, 60, 411, 461), ""},
	"more are leased than may":            {newScenario().at(0).limited(sluice.Limits{Running: 2}).many(10, 60, 160), "and 3 are leased"},
	"a rate is not kept of before":        {newScenario().at(0).limited(sluice.Limits{Rate: 1, Per: 100 * ms, Burst: 1}).at(2).limited(sluice.Limits{}).many(10, 10, 10), ""},
	"limits that no client has requested": {newScenario().at(5).logs("SET {Queue:loop}:paused 0_3_0_0_0_0"), "no client requested them"},
	"limits that a pause has lost": {newScenario().at(5).limited(sluice.Limits{Running: 3}).at(8).logs("DEL {Queue:loop}:paused; SET {Queue:loop}:paused 1 PXAT @9"),
		"no client requested them"},
	"limits that are not in the log": {newScenario().recorded(record{Op: opSetLimits, Name: loopQueue, Limits: sluice.Limits{Running: 3}, Call: 5, Return: 6, Result: done}),
		"the log does not have it"},
	"an extension that came too late for its place": {newScenario().at(0).limited(sluice.Limits{Running: 2}).many(10).
		recorded(record{Op: opExtend, Name: loopQueue, ID: "t0", Call: 450, Return: 452, Score: newScenario().score(410), Delivery: newScenario().score(410), Result: stale}), ""},
	"an extension that was refused in time": {newScenario().at(0).limited(sluice.Limits{Running: 2}).many(10).
		recorded(record{Op: opExtend, Name: loopQueue, ID: "t0", Call: 100, Return: 102, Score: newScenario().score(410), Delivery: newScenario().score(410), Result: stale}), "was stale at"},
	"an extension that was refused where nothing limits": {newScenario().many(10).
		recorded(record{Op: opExtend, Name: loopQueue, ID: "t0", Call: 450, Return: 452, Score: newScenario().score(410), Delivery: newScenario().score(410), Result: stale}), "was stale at"},
	"a pause of a queue with limits": {newScenario().at(5).limited(sluice.Limits{Running: 3}).at(8).
		logs("DEL {Queue:loop}:paused; SET {Queue:loop}:paused 1700000000100000_3_0_0_0_0").many(20), "while its queue was paused"},
}
