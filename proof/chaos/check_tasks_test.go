package main

import "github.com/sluice-go/sluice"

// taskCases are about tasks.
var taskCases = map[string]checkCase{
	"a task is done": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs(gone).settled(opDequeue, "", 430, 0, done), ""},
	"a task is done without a request": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs(gone), "no client requested it"},
	"a task is done with another receipt": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs(gone).settled(opDequeue, "", 429, 0, unknown), "no client requested it"},
	"a task is done by a refused operation": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs(gone).settled(opDequeue, "", 430, 0, stale), "no client requested it"},
	"a receipt is valid twice": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs(gone).settled(opDequeue, "", 430, 0, done).settled(opDequeue, "", 430, 0, done), "or another operation made it"},
	// Each entry of the log is one caller's, whichever caller's records are read first.
	"done, cut off, and done by another who asked before": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs(gone).at(45).lost(2).at(70).logs(gone).
		recorded(record{Process: "a", Op: opDequeue, Name: loopQueue, ID: "t", Call: 40, Return: 71, Score: newScenario().score(430), Result: done}).
		recorded(record{Process: "b", Op: opDequeue, Name: loopQueue, ID: "t", Call: 40, Return: 41, Score: newScenario().score(430), Result: done}), ""},
	"done, cut off, and done by none": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs(gone).at(45).lost(2).
		recorded(record{Process: "a", Op: opDequeue, Name: loopQueue, ID: "t", Call: 40, Return: 71, Score: newScenario().score(430), Result: done}).
		recorded(record{Process: "b", Op: opDequeue, Name: loopQueue, ID: "t", Call: 40, Return: 41, Score: newScenario().score(430), Result: done}), "or another operation made it"},
	"done, and still there": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).settled(opDequeue, "", 430, 0, done), "or another operation made it"},
	"extended, the reply lost, and then stale": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs("ZREM Queue:loop t; ZADD Queue:loop @@440 t; HSET {Queue:loop}:state t 1:@@440/@@430:").
		recorded(record{Op: opExtend, Name: loopQueue, ID: "t", Call: 39, Return: 60, Score: newScenario().score(430), Delivery: newScenario().score(430), Result: stale}).
		at(50).logs(gone).settled(opDequeue, "", 430, 0, done), ""},
	"peeked behind a lease that was extended late, and stale": {newScenario().extendedTwice().
		recorded(record{Op: opDequeue, Name: loopQueue, ID: "t", Call: 448, Return: 460, Score: newScenario().score(440), Result: stale}).
		at(500).logs(gone).settled(opDequeue, "", 430, 0, done), ""},
	"peeked behind a lease, and stale before that was extended": {newScenario().extendedTwice().
		recorded(record{Op: opDequeue, Name: loopQueue, ID: "t", Call: 442, Return: 445, Score: newScenario().score(440), Result: stale}).
		at(500).logs(gone).settled(opDequeue, "", 430, 0, done), "was stale at"},
	"extended without a request": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs("ZREM Queue:loop t; ZADD Queue:loop @@440 t; HSET {Queue:loop}:state t 1:@@440/@@430:").
		at(50).logs(gone).settled(opDequeue, "", 430, 0, done), "was extended, and no client requested it"},
	"claimed, and not listed": {newScenario().
		at(10).enqueued("v", 20).at(30).logs("ZREM {Queue:loop}:leased t; ZREM Queue:loop t; ZADD Queue:loop @@430 t; HSET {Queue:loop}:state t 1:@@430:"),
		"the list of leased tasks shows something else"},
	"done, and still listed": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs("ZADD {Queue:loop}:leased @@430 t; "+gone).settled(opDequeue, "", 430, 0, done),
		"the list of leased tasks shows something else"},
	"a task of one of many queues is done": {newScenario().
		at(10).added("many:1", "v", 10).at(20).leased("many:1", 1, 420).
		at(30).logs("ZREM Queue:many:1 t; HDEL {Queue:many:1}:tasks t; HDEL {Queue:many:1}:state t").
		settledOn("many:1", opDequeue, "", 420, 0, done), ""},
	"a task of one of many queues is done, and another queue was asked": {newScenario().
		at(10).added("many:1", "v", 10).at(20).leased("many:1", 1, 420).
		at(30).logs("ZREM Queue:many:1 t; HDEL {Queue:many:1}:tasks t; HDEL {Queue:many:1}:state t").
		settledOn("many:2", opDequeue, "", 420, 0, unknown), "no client requested it"},
	"claimed early": {newScenario().at(10).enqueued("v", 100).claimed("v", 1, 50), "early"},
	"claimed within a lease": {newScenario().
		at(10).enqueued("v", 10).claimed("v", 1, 20).reclaimed("v", 1, 1, 300), "early"},
	"held twice": {newScenario().
		at(10).enqueued("v", 10).claimed("v", 1, 20).reclaimed("v", 1, 1, 300), "held twice at once"},
	"given back by its late claim": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).recorded(record{Op: opClaiming, Name: loopQueue, Call: 25, Return: 500, Result: lostIt}).
		at(505).logs("ZREM Queue:loop t; ZADD Queue:loop @@505 t; HDEL {Queue:loop}:state t").
		claimed("v", 1, 600).at(610).logs(gone).settled(opDequeue, "", 1000, 0, done), ""},
	"given back by another late claim": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).recorded(record{Op: opClaiming, Name: loopQueue, Call: 100, Return: 600, Result: lostIt}).
		at(505).logs("ZREM Queue:loop t; ZADD Queue:loop @@505 t; HDEL {Queue:loop}:state t").
		claimed("v", 1, 600).at(610).logs(gone).settled(opDequeue, "", 1000, 0, done), "was released, and no client requested it"},
	"claimed after a pause": {newScenario().
		at(5).logs("SET {Queue:loop}:paused 1 PXAT @15").at(10).enqueued("v", 10).claimed("v", 1, 20).at(30).logs(gone).settled(opDequeue, "", 420, 0, done), ""},
	"claimed after a pause that was ended": {newScenario().
		at(5).logs("SET {Queue:loop}:paused 1").at(10).enqueued("v", 10).at(15).logs("DEL {Queue:loop}:paused").
		claimed("v", 1, 20).at(30).logs(gone).settled(opDequeue, "", 420, 0, done), ""},
	"claimed in a pause": {newScenario().
		at(5).logs("SET {Queue:loop}:paused 1 PXAT @100").at(10).enqueued("v", 10).claimed("v", 1, 20), "while its queue was paused"},
	"claimed in a pause without end": {newScenario().
		at(5).logs("SET {Queue:loop}:paused 1").at(10).enqueued("v", 10).claimed("v", 1, 20), "while its queue was paused"},
	"a pause that is not in the log": {newScenario().
		recorded(record{Op: opPause, Name: loopQueue, Call: 25, Return: 500, Result: done}), "the log does not have it"},
	"a page of a list that is out of order": {newScenario().
		recorded(record{Op: opList, Name: loopQueue, Call: 25, Return: 500, Result: outOfOrder}), "a page has a task of another state"},
	"a handler that began when the clock had ended its lease": {newScenario().
		at(10).added(workQueue, "v", 10).at(20).leased(workQueue, 1, 420).at(25).jump(3600*1000*ms).handled("p", 420, 1, 100, 150).
		at(155).logs("ZREM Queue:work t; HDEL {Queue:work}:tasks t; HDEL {Queue:work}:state t"), ""},
	"a handler that began after its lease": {newScenario().
		at(10).added(workQueue, "v", 10).at(20).leased(workQueue, 1, 420).handled("p", 420, 1, 600, 650).
		at(655).logs("ZREM Queue:work t; HDEL {Queue:work}:tasks t; HDEL {Queue:work}:state t"), "went on until"},
	"a handler returned Again": {newScenario().
		at(10).added(workQueue, "v", 10).at(20).leased(workQueue, 1, 420).answered(again, 50, 420, 22).
		at(40).logs("ZREM Queue:work t; ZADD Queue:work @@90 t; HDEL {Queue:work}:state t").
		at(100).leased(workQueue, 1, 500).answered(done, 0, 500, 102).
		at(110).logs("ZREM Queue:work t; HDEL {Queue:work}:tasks t; HDEL {Queue:work}:state t"), ""},
	"Again used an attempt": {newScenario().
		at(10).added(workQueue, "v", 10).at(20).leased(workQueue, 1, 420).answered(again, 50, 420, 22).
		at(40).logs("ZREM Queue:work t; ZADD Queue:work @@90 t; HSET {Queue:work}:state t 1::"), "was given back, and no client requested it"},
	"Again, and due sooner": {newScenario().
		at(10).added(workQueue, "v", 10).at(20).leased(workQueue, 1, 420).answered(again, 50, 420, 22).
		at(40).logs("ZREM Queue:work t; ZADD Queue:work @@60 t; HDEL {Queue:work}:state t"), "was to be due again in 50ms"},
	"due again, and the handler did not ask for it": {newScenario().
		at(10).added(workQueue, "v", 10).at(20).leased(workQueue, 1, 420).answered(no, 50, 420, 22).
		at(40).logs("ZREM Queue:work t; ZADD Queue:work @@90 t; HDEL {Queue:work}:state t"), "was released, and no client requested it"},
	"claimed after a lease": {newScenario().
		at(10).enqueued("v", 10).claimed("v", 1, 20).reclaimed("v", 1, 1, 500).at(510).logs(gone).settled(opDequeue, "", 900, 0, done), ""},
	"an attempt is not counted": {newScenario().
		at(10).enqueued("v", 10).claimed("v", 1, 20).claimed("v", 1, 500), "attempt 1 after 1"},
	"a delivery is not counted three times": {newScenario().
		at(10).enqueued("v", 10).claimed("v", 1, 20).reclaimed("v", 1, 1, 500).reclaimed("v", 1, 2, 1000).reclaimed("v", 1, 3, 1500), "attempt 1 after 1"},
	"changed beyond recognition": {newScenario().
		at(10).enqueued("v", 10).claimed("v", 1, 20).at(30).logs("HSET {Queue:loop}:tasks t w; HSET {Queue:loop}:state t 7:@@420:"), ": {queued:true"},
	"an attempt is counted twice": {newScenario().at(10).enqueued("v", 10).claimed("v", 2, 20), "attempt 2 after 0"},
	"a delivery that is not in the log": {newScenario().
		at(20).settled(opDelivery, "v", 430, 1, done), "does not have it"},
	"a delivery of another version": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).settled(opDelivery, "w", 430, 1, done), "does not have it"},
	"one claim for two": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).settled(opDelivery, "v", 430, 1, done), "delivered 2 times"},
	"an enqueue that was not written": {newScenario().
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "v", Call: 1, Return: 2, Result: done, Outcome: 1}), "never written"},
	"an enqueue that was cut off": {newScenario().at(10).enqueued("v", 20).at(30).lost(0), ""},
	"an enqueue that was refused, and written": {newScenario().
		at(10).logs("ZADD Queue:loop @@20 t; HSET {Queue:loop}:tasks t v").
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "v", Call: 9, Return: 20, Result: refused}), "was refused"},
	"a task that was not enqueued": {newScenario().
		at(10).logs("ZADD Queue:loop @@20 t; HSET {Queue:loop}:tasks t v"), "no client requested it"},
	"replaced by an earlier version": {newScenario().
		at(10).enqueued("v", 50).at(20).replaced(sluice.DuplicatesEarliest, "w", 40, 40).claimed("w", 1, 60).at(70).logs(gone).settled(opDequeue, "", 460, 0, done), ""},
	"replaced by a later version with Earliest": {newScenario().
		at(10).enqueued("v", 50).at(20).replaced(sluice.DuplicatesEarliest, "w", 55, 55).claimed("w", 1, 60).at(70).logs(gone).settled(opDequeue, "", 460, 0, done), "against policy"},
	"replaced by an earlier version with Latest": {newScenario().
		at(10).enqueued("v", 50).at(20).replaced(sluice.DuplicatesLatest, "w", 40, 40).claimed("w", 1, 60).at(70).logs(gone).settled(opDequeue, "", 460, 0, done), "against policy"},
	"a task that is left": {newScenario().at(10).enqueued("v", 20), "still there when everything is quiet"},
	"a state that is left": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs("ZREM Queue:loop t; HDEL {Queue:loop}:tasks t").settled(opDequeue, "", 430, 0, done), "half there"},
	"a payload that is left": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs("ZREM Queue:loop t; HDEL {Queue:loop}:state t").settled(opDequeue, "", 430, 0, done), "half there"},
	"a payload that is lost": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs("ZREM Queue:loop t; ZADD {Queue:loop}:dead @@40 t; HDEL {Queue:loop}:tasks t; HSET {Queue:loop}:state t 1:dead:why"), "half there"},
	"a claim that writes the payload": {newScenario().
		at(10).enqueued("v", 20).at(30).logs("ZREM Queue:loop t; ZADD Queue:loop @@430 t; HSET {Queue:loop}:tasks t v; HSET {Queue:loop}:state t 1:@@430:"), ": {queued:true"},
	"a payload that is written again": {newScenario().
		at(10).enqueued("v", 20).at(30).logs("HSET {Queue:loop}:tasks t v"), ": {queued:true"},
	"a waiting version takes over": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs("HSET {Queue:loop}:tasks t w; HSET {Queue:loop}:state t 1:@@430:@@50").
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "w", Call: 40, Return: 41, Delay: 10 * ms, Result: done, Outcome: 4}).
		at(45).logs("ZREM Queue:loop t; ZADD Queue:loop @@50 t; HDEL {Queue:loop}:state t").settled(opDequeue, "", 430, 0, done).
		claimed("w", 1, 60).at(70).logs(gone).settled(opDequeue, "", 460, 0, done), ""},
	"a waiting version takes over, due just before the lease would have ended": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(200).logs("HSET {Queue:loop}:tasks t w; HSET {Queue:loop}:state t 1:@@430:@@430").
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "w", Call: 200, Return: 201, Delay: 230 * ms, Result: done, Outcome: 4}).
		at(210).logs("ZREM Queue:loop t; ZADD Queue:loop 1700000000.430001 t; HDEL {Queue:loop}:state t").settled(opDequeue, "", 430, 0, done).
		claimed("w", 1, 440).at(450).logs(gone).settled(opDequeue, "", 840, 0, done), ""},
	"a waiting version takes over, due long after its time": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(200).logs("HSET {Queue:loop}:tasks t w; HSET {Queue:loop}:state t 1:@@430:@@430").
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "w", Call: 200, Return: 201, Delay: 230 * ms, Result: done, Outcome: 4}).
		at(210).logs("ZREM Queue:loop t; ZADD Queue:loop 1700000000.430101 t; HDEL {Queue:loop}:state t").settled(opDequeue, "", 430, 0, done).
		claimed("w", 1, 440).at(450).logs(gone).settled(opDequeue, "", 840, 0, done), "rescheduled, and no client requested it"},
	"a waiting version is done by the receipt that it has when it has taken over": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(200).logs("HSET {Queue:loop}:tasks t w; HSET {Queue:loop}:state t 1:@@430:@@430").
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "w", Call: 200, Return: 201, Delay: 230 * ms, Result: done, Outcome: 4}).
		at(440).logs(gone).recorded(record{Op: opDequeue, Name: loopQueue, ID: "t", Call: 440, Return: 441, Score: 1700000000.430001, Result: done}), ""},
	"a waiting version is done by another receipt": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(200).logs("HSET {Queue:loop}:tasks t w; HSET {Queue:loop}:state t 1:@@430:@@430").
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "w", Call: 200, Return: 201, Delay: 230 * ms, Result: done, Outcome: 4}).
		at(440).logs(gone).recorded(record{Op: opDequeue, Name: loopQueue, ID: "t", Call: 440, Return: 441, Score: 1700000000.430101, Result: done}), "no client requested it"},
	"a version waits that was enqueued with Keep": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs("HSET {Queue:loop}:tasks t w; HSET {Queue:loop}:state t 1:@@430:@@50").
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "w", Call: 40, Return: 41, Delay: 10 * ms, Result: done, Outcome: 4, Policy: int(sluice.DuplicatesKeep)}).
		at(45).logs("ZREM Queue:loop t; ZADD Queue:loop @@50 t; HDEL {Queue:loop}:state t").settled(opDequeue, "", 430, 0, done).
		claimed("w", 1, 60).at(70).logs(gone).settled(opDequeue, "", 460, 0, done), "against policy"},
	"a version of a merged call has the due time of the call before": {newScenario().
		at(10).logs("ZADD Queue:loop @@20 t; HSET {Queue:loop}:tasks t u; HSET {Queue:loop}:tasks t v").
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "v", Call: 9, Return: 12, Delay: 230 * ms, Result: done, Outcome: 2, Policy: int(sluice.DuplicatesKeepDue)}).
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "u", Call: 9, Return: 12, Delay: 10 * ms, Result: done, Outcome: 1, Policy: int(sluice.DuplicatesKeepDue)}).
		claimed("v", 1, 30).at(70).logs(gone).settled(opDequeue, "", 430, 0, done), ""},
	"a version has a due time that no call before explains": {newScenario().
		at(10).logs("ZADD Queue:loop @@20 t; HSET {Queue:loop}:tasks t v").
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "v", Call: 9, Return: 12, Delay: 230 * ms, Result: done, Outcome: 1, Policy: int(sluice.DuplicatesKeepDue)}).
		claimed("v", 1, 30).at(70).logs(gone).settled(opDequeue, "", 430, 0, done), "after it was enqueued"},
	"a waiting version is claimed by the script that ends the lease": {newScenario().
		at(10).added(workQueue, "v", 10).at(20).leased(workQueue, 1, 420).handled("a", 420, 1, 21, 100).
		at(40).logs("HSET {Queue:work}:tasks t w; HSET {Queue:work}:state t 1:@@420:@@50").
		recorded(record{Op: opEnqueue, Name: workQueue, ID: "t", Version: "w", Call: 40, Return: 41, Delay: 10 * ms, Result: done, Outcome: 4}).
		at(110).leased(workQueue, 1, 510).
		recorded(record{Process: "b", Op: opHandle, Name: workQueue, ID: "t", Version: "w", Attempt: 1, Call: 111, Until: 500, Return: 200,
			Score: newScenario().score(510), Delivery: newScenario().score(510), Result: done}).
		at(200).logs("ZREM Queue:work t; HDEL {Queue:work}:tasks t; HDEL {Queue:work}:state t"), ""},
	"a waiting version is claimed by the script that ends the lease, just before the lease ended": {newScenario().
		at(10).added(workQueue, "v", 10).at(20).leased(workQueue, 1, 420).handled("a", 420, 1, 21, 100).
		at(40).logs("HSET {Queue:work}:tasks t w; HSET {Queue:work}:state t 1:@@420:@@50").
		recorded(record{Op: opEnqueue, Name: workQueue, ID: "t", Version: "w", Call: 40, Return: 41, Delay: 10 * ms, Result: done, Outcome: 4}).
		at(419).leased(workQueue, 1, 819).
		recorded(record{Process: "b", Op: opHandle, Name: workQueue, ID: "t", Version: "w", Attempt: 1, Call: 421, Until: 500, Return: 500,
			Score: newScenario().score(819), Delivery: newScenario().score(819), Result: done}).
		at(501).logs("ZREM Queue:work t; HDEL {Queue:work}:tasks t; HDEL {Queue:work}:state t"), ""},
	"a waiting version is claimed too early by the script that ends the lease": {newScenario().
		at(10).added(workQueue, "v", 10).at(20).leased(workQueue, 1, 420).handled("a", 420, 1, 21, 43).
		at(40).logs("HSET {Queue:work}:tasks t w; HSET {Queue:work}:state t 1:@@420:@@50").
		recorded(record{Op: opEnqueue, Name: workQueue, ID: "t", Version: "w", Call: 40, Return: 41, Delay: 10 * ms, Result: done, Outcome: 4}).
		at(45).leased(workQueue, 1, 445).
		recorded(record{Process: "b", Op: opHandle, Name: workQueue, ID: "t", Version: "w", Attempt: 1, Call: 46, Until: 400, Return: 200,
			Score: newScenario().score(445), Delivery: newScenario().score(445), Result: done}).
		at(200).logs("ZREM Queue:work t; HDEL {Queue:work}:tasks t; HDEL {Queue:work}:state t"), "early"},
	"a waiting version is claimed in a lease that no handler ended": {newScenario().
		at(10).added(workQueue, "v", 10).at(20).leased(workQueue, 1, 420).
		at(40).logs("HSET {Queue:work}:tasks t w; HSET {Queue:work}:state t 1:@@420:@@50").
		recorded(record{Op: opEnqueue, Name: workQueue, ID: "t", Version: "w", Call: 40, Return: 41, Delay: 10 * ms, Result: done, Outcome: 4}).
		at(110).leased(workQueue, 1, 510).
		recorded(record{Process: "b", Op: opHandle, Name: workQueue, ID: "t", Version: "w", Attempt: 1, Call: 111, Until: 500, Return: 200,
			Score: newScenario().score(510), Delivery: newScenario().score(510), Result: done}).
		at(200).logs("ZREM Queue:work t; HDEL {Queue:work}:tasks t; HDEL {Queue:work}:state t"), "no client requested it"},
	"a waiting version is dropped": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs("HSET {Queue:loop}:tasks t w; HSET {Queue:loop}:state t 1:@@430:@@50").
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "w", Call: 40, Return: 41, Delay: 10 * ms, Result: done, Outcome: 4}).
		at(45).logs(gone).settled(opDequeue, "", 430, 0, done), "no client requested it"},
	"a version that replaces one in a lease": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).enqueued("w", 50), "during a lease"},
	"stale, and valid": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).settled(opDequeue, "", 430, 0, stale).
		at(60).logs(gone).settled(opDequeue, "", 430, 0, done), "the log has its receipt"},
	"stale, as it was used": {newScenario().
		at(10).enqueued("v", 20).claimed("v", 1, 30).at(60).logs(gone).settled(opDequeue, "", 430, 0, done).
		at(70).settled(opDequeue, "", 430, 0, stale), ""},
	"not held, and there": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(60).logs("DEL Lock:n").
		recorded(withResult(notHeld, held("a", "T", 9, 11, 19, 0))), "and the log has its hold"},
	"not held, as the deadline had passed before Unlock": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(60).logs("DEL Lock:n").
		recorded(unlockedAfter(1, withResult(notHeld, held("a", "T", 9, 11, 19, 0)))), ""},
	"not held, as all were released": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(60).logs("DEL Lock:n").
		recorded(record{Op: opUnlockAll, Name: "all", Call: 15, Return: 70, Result: unknown}).
		recorded(withResult(notHeld, held("a", "T", 9, 11, 19, 0))), ""},
	"not held, as all were released by a call that a kill ended": {lasting(1000).
		at(10).logs("SET Lock:n T PXAT @110").at(60).logs("DEL Lock:n").
		recorded(record{Op: opUnlockAll, Name: "all", Call: 15}).dies("a", 30).
		recorded(withResult(notHeld, held("a", "T", 9, 11, 19, 0))), ""},
	"a handler that goes on": {newScenario().
		at(10).added(workQueue, "v", 10).at(20).leased(workQueue, 1, 420).handled("a", 420, 1, 21, 890).
		at(895).leased(workQueue, 2, 1295).handled("b", 1295, 2, 896, 900).
		at(902).logs("ZREM Queue:work t; HDEL {Queue:work}:tasks t; HDEL {Queue:work}:state t"), "after its lease"},
	"popped, and not returned": {newScenario().
		at(10).added(popQueue, "v", 10).at(40).logs("ZREM Queue:pop t; HDEL {Queue:pop}:tasks t; HDEL {Queue:pop}:state t"), "no caller got it"},
	"popped, and not returned, after a Cancel of the one before": {newScenario().
		recorded(record{Op: opCancel, Name: popQueue, ID: "t", Call: 3, Return: 4, Result: done}).
		at(2).added(popQueue, "u", 10).at(3).logs("ZREM Queue:pop t; HDEL {Queue:pop}:tasks t").
		at(10).added(popQueue, "v", 10).at(40).logs("ZREM Queue:pop t; HDEL {Queue:pop}:tasks t; HDEL {Queue:pop}:state t"), "no caller got it"},
	"popped, and the reply lost": {newScenario().
		at(10).added(popQueue, "v", 10).at(40).logs("ZREM Queue:pop t; HDEL {Queue:pop}:tasks t; HDEL {Queue:pop}:state t").
		recorded(record{Op: opPopping, Name: popQueue, Call: 39, Return: 50, Result: unknown}), ""},
	"popped in a pause": {newScenario().
		at(10).added(popQueue, "v", 10).at(20).logs("SET {Queue:pop}:paused 1 PXAT @100").
		at(60).logs("ZREM Queue:pop t; HDEL {Queue:pop}:tasks t; HDEL {Queue:pop}:state t").
		recorded(record{Op: opPop, Name: popQueue, ID: "t", Version: "v", Call: 59, Return: 70, Result: done, Score: newScenario().score(10), Delivery: newScenario().score(10)}),
		"while its queue was paused"},
	"popped again in a pause, after the change of it was lost": {newScenario().
		at(10).added(popQueue, "v", 10).at(20).logs("SET {Queue:pop}:paused 1 PXAT @100; ZADD Queue:pop @@15 t; HSET {Queue:pop}:tasks t w").
		recorded(record{Op: opEnqueue, Name: popQueue, ID: "t", Version: "w", Call: 19, Return: 41, Result: done, Outcome: 2}).
		at(30).lost(1).at(60).logs("ZREM Queue:pop t; HDEL {Queue:pop}:tasks t; HDEL {Queue:pop}:state t").
		recorded(record{Op: opPop, Name: popQueue, ID: "t", Version: "v", Call: 59, Return: 70, Result: done, Score: newScenario().score(10), Delivery: newScenario().score(10)}), ""},
	"popped after a pause, in which it was cancelled, and that was lost": {newScenario().
		at(5).logs("SET {Queue:pop}:paused 1 PXAT @100").at(10).added(popQueue, "v", 10).
		at(30).logs("ZREM Queue:pop t; HDEL {Queue:pop}:tasks t").recorded(record{Op: opCancel, Name: popQueue, ID: "t", Call: 29, Return: 32, Result: done}).
		at(40).lost(2).at(55).logs("DEL {Queue:pop}:paused").at(60).logs("ZREM Queue:pop t; HDEL {Queue:pop}:tasks t").
		recorded(record{Op: opPop, Name: popQueue, ID: "t", Version: "v", Call: 59, Return: 70, Result: done, Score: newScenario().score(10), Delivery: newScenario().score(10)}), ""},
	"claimed, and not returned": {newScenario().
		at(10).added(loopQueue, "v", 10).at(20).leased(loopQueue, 1, 420), "no caller got it"},
	"cancelled as it was read":              {newScenario().at(10).enqueued("v", 20).at(30).logs(gone).cancelsAsRead(20), ""},
	"cancelled, and read before it changed": {newScenario().at(10).enqueued("v", 20).at(30).logs(gone).cancelsAsRead(10), "no client requested it"},
	"a cancel that did nothing":             {newScenario().at(40).settled(opCancel, "", 0, 0, done), "returned true"},
}

// cancelsAsRead records the CancelUnchanged of a task that was read with this due time.
func (s *scenario) cancelsAsRead(due int) *scenario {
	return s.byID(opCancel).withLast(func(r *record) { r.Read = s.score(due) })
}
