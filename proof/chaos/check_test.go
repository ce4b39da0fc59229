package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// story is evidence, told in milliseconds.
type story struct {
	evidence
	now time.Duration
}

const ms = time.Millisecond

func newStory() *story {
	s := &story{}
	s.clock.ahead = 1_700_000_000 * time.Second
	s.ended = 1000 * ms
	s.deaths, s.stops = map[string]time.Duration{}, map[string][]span{}
	return s
}

func lasting(end time.Duration) *story {
	s := newStory()
	s.ended = end * ms
	return s
}

// at says when the next thing happens.
func (s *story) at(now time.Duration) *story {
	s.now = now * ms
	return s
}

// logs has the witness tell of a transaction; its commands are separated by ";". A
// number with an "@" is a time of the server, in milliseconds or, as "@@", in seconds.
func (s *story) logs(transaction string) *story {
	e := entry{span: span{s.now, s.now + ms}}
	for command := range strings.SplitSeq(transaction, "; ") {
		words := strings.Fields(command)
		for i, word := range words {
			words[i] = s.times(word)
		}
		e.commands = append(e.commands, words)
	}
	s.log = append(s.log, e)
	return s
}

func (s *story) times(word string) string {
	parts := strings.Split(word, ":")
	for i, part := range parts {
		if n, err := strconv.Atoi(strings.TrimLeft(part, "@")); err == nil && strings.HasPrefix(part, "@@") {
			parts[i] = strconv.FormatFloat(s.score(n), 'f', 6, 64)
		} else if err == nil && strings.HasPrefix(part, "@") {
			parts[i] = fmt.Sprint((s.clock.ahead + time.Duration(n)*ms).Milliseconds())
		}
	}
	return strings.Join(parts, ":")
}

// score is a time of the server.
func (s *story) score(n int) float64 {
	x, _ := strconv.ParseFloat(fmt.Sprintf("%.6f", (s.clock.ahead+time.Duration(n)*ms).Seconds()), 64)
	return x
}

// tells has a client tell of something.
func (s *story) tells(r record) *story {
	r.Seq = uint64(len(s.records) + 1)
	for _, t := range []*time.Duration{&r.Call, &r.Return, &r.Got, &r.From, &r.Until, &r.Deadline, &r.Unlock, &r.Limit} {
		*t *= ms
	}
	if r.Process == "" {
		r.Process = "a"
	}
	s.records = append(s.records, r)
	return s
}

// held is a lock that was held from then until then, and released.
func held(process, token string, call, from, until time.Duration, fence int64) record {
	return record{Process: process, Op: opHold, Name: "n", Token: digest(token), Call: call, Got: from, From: from,
		Until: until, Unlock: until, Return: until + 1, Deadline: until + 1, Fence: fence, Result: done}
}

func told(what result, r record) record {
	r.Result = what
	return r
}

func heldFor(ttl time.Duration, r record) record {
	r.TTL = ttl * ms
	return r
}

// lost marks all that the log tells from then on as cut off, in a restart at the end.
func (s *story) lost(from int) *story {
	for i := from; i < len(s.log); i++ {
		s.log[i].lost = true
	}
	s.log = append(s.log, entry{rewind: true, span: span{s.now, s.now + 10*ms}})
	return s
}

func (s *story) jump(offset time.Duration) *story {
	s.clock.jumps = append(s.clock.jumps, jump{span{s.now, s.now}, offset})
	return s
}

// added is a task "t" of a queue that was enqueued, and is due then.
func (s *story) added(queue, version string, due int) *story {
	s.logs(fmt.Sprintf("ZADD Queue:%s @@%d t; HSET {Queue:%[1]s}:tasks t :::%[3]s", queue, due, version))
	now := s.now / ms
	return s.tells(record{Op: opEnqueue, Name: queue, ID: "t", Version: version, Call: now, Return: now + 1, Result: done, Outcome: 1,
		Delay: time.Duration(due)*ms - s.now})
}

// leased is a claim of it, of which nobody has told.
func (s *story) leased(queue, version string, attempt, until int) *story {
	return s.logs(fmt.Sprintf("ZREM Queue:%s t; ZADD Queue:%[1]s @@%[2]d t; HSET {Queue:%[1]s}:tasks t %[3]d:@@%[2]d::%[4]s", queue, until, attempt, version))
}

// handled is a Worker's handler of it, whose context lived until then.
func (s *story) handled(process string, receipt, attempt int, call, until time.Duration) *story {
	return s.tells(record{Process: process, Op: opHandle, Name: workQueue, ID: "t", Version: "v", Attempt: attempt,
		Call: call, Until: until, Return: until + 1, Score: s.score(receipt), Delivery: s.score(receipt), Result: done})
}

// enqueued is a task "t" that was enqueued, with a payload that begins with version.
func (s *story) enqueued(version string, due int) *story {
	s.logs(fmt.Sprintf("ZADD Queue:loop @@%d t; HSET {Queue:loop}:tasks t :::%s", due, version))
	now := s.now / ms
	return s.tells(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: version, Call: now, Return: now + 1, Result: done, Outcome: 1,
		Delay: time.Duration(due)*ms - s.now})
}

// claimed is a claim of "t" at that time.
func (s *story) claimed(version string, attempt, now int) *story {
	s.at(time.Duration(now)).logs(fmt.Sprintf("ZREM Queue:loop t; ZADD Queue:loop @@%d t; HSET {Queue:loop}:tasks t %d:@@%d::%s", now+400, attempt, now+400, version))
	return s.said(opDelivery, version, now+400, attempt, done)
}

// said is an operation on the delivery of "t" with that receipt.
func (s *story) said(what op, version string, receipt, attempt int, r result) *story {
	now := s.now / ms
	return s.tells(record{Op: what, Name: loopQueue, ID: "t", Version: version, Attempt: attempt, Call: now, Return: now + 1,
		Score: s.score(receipt), Delivery: s.score(receipt), Result: r})
}

const gone = "ZREM Queue:loop t; HDEL {Queue:loop}:tasks t"

// TestCheck shows the checker histories that are right, and what it must object to.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		story *story
		wrong string // "" for nothing
	}{
		"a lock is taken and released": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(20).logs("DEL Lock:n").
			tells(held("a", "T", 9, 11, 19, 0)), ""},
		"one after the other": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(20).logs("DEL Lock:n").at(30).logs("SET Lock:n U PXAT @130").at(40).logs("DEL Lock:n").
			tells(held("a", "T", 9, 11, 19, 5)).tells(held("b", "U", 9, 31, 39, 6)), ""},
		"a key that is held is given to another": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(20).logs("SET Lock:n U PXAT @130"), "given to another token"},
		"two believe": {newStory().
			tells(record{Op: opHold, Name: "n", Call: 1, From: 10, Until: 20, Unlock: 20, Return: 21, Result: done}).
			tells(record{Process: "b", Op: opHold, Name: "n", Call: 1, From: 15, Until: 30, Unlock: 30, Return: 31, Result: done}), "two held n"},
		"porcupine sees it too": {newStory().
			tells(record{Op: opHold, Name: "n", Call: 1, From: 10, Until: 20, Unlock: 20, Return: 21, Result: done}).
			tells(record{Process: "b", Op: opHold, Name: "n", Call: 1, From: 15, Until: 30, Unlock: 30, Return: 31, Result: done}), "not one of a lock"},
		"a belief after the release": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(20).logs("DEL Lock:n").
			tells(held("a", "T", 9, 11, 30, 0)), "the witness says"},
		"a belief after the expiry": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(200).logs("DEL Lock:n").
			tells(held("a", "T", 9, 11, 120, 0)), "the witness says"},
		"a belief that was extended": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(60).logs("PEXPIREAT Lock:n @160").at(130).logs("DEL Lock:n").
			tells(held("a", "T", 9, 11, 129, 0)), ""},
		"a belief without a key": {newStory().tells(held("a", "T", 9, 11, 12, 0)), "the witness says"},
		"a belief before the key": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(20).logs("DEL Lock:n").
			tells(held("a", "T", 1, 5, 19, 0)), "the witness says"},
		"the clock is set ahead": {newStory().
			at(10).logs("SET Lock:n T PXAT @1100").at(15).jump(time.Hour).at(16).logs("DEL Lock:n").at(17).logs("SET Lock:n U PXAT @3601100").
			at(40).logs("DEL Lock:n").
			tells(heldFor(1000, held("a", "T", 9, 11, 100, 0))).tells(held("b", "U", 9, 18, 39, 0)), ""},
		"the clock is set ahead, and nobody notices": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(15).jump(time.Hour).at(16).logs("DEL Lock:n").
			tells(heldFor(100, held("a", "T", 9, 11, 400, 0))), "the witness says"},
		"the clock is set back": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(15).jump(-time.Hour).at(300).logs("DEL Lock:n").
			tells(held("a", "T", 9, 11, 299, 0)), ""},
		"data is lost": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(20).lost(0).at(40).logs("SET Lock:n U PXAT @140").at(50).logs("DEL Lock:n").
			tells(heldFor(100, held("a", "T", 9, 11, 100, 0))).tells(held("b", "U", 9, 41, 49, 0)), ""},
		"an extension is lost, and made again": {newStory().
			at(10).logs("SET Lock:n T PXAT @300").at(15).logs("PEXPIREAT Lock:n @400").at(20).lost(1).at(40).logs("PEXPIREAT Lock:n @700").
			at(690).logs("DEL Lock:n").tells(heldFor(300, held("a", "T", 9, 11, 689, 0))), ""},
		"data is lost, but not this": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(11).logs("SET Lock:m V PXAT @110").at(20).lost(1).at(30).logs("SET Lock:n U PXAT @140").
			tells(held("a", "T", 9, 11, 25, 0)), "given to another token"},
		"fences that fall": {newStory().
			tells(held("a", "T", 1, 2, 3, 8)).tells(held("b", "U", 5, 6, 7, 7)), "fence 8"},
		"a fence twice": {newStory().
			tells(held("a", "T", 1, 2, 3, 8)).tells(held("b", "U", 1, 6, 7, 8)), "fence 8"},
		"a fence that was forgotten, the clock behind": {newStory().
			at(10).logs("SET Lock:n T PXAT @110; SET {Lock:n}:fence 1700003600000000 PXAT @900").at(12).logs("DEL Lock:n").at(20).lost(0).
			at(31).jump(-2 * time.Hour).
			at(40).logs("SET Lock:n U PXAT @-7199000; SET {Lock:n}:fence 1700000000000000 PXAT @900").at(42).logs("DEL Lock:n").
			tells(held("a", "T", 9, 11, 12, 1_700_003_600_000_000)).tells(held("b", "U", 39, 41, 42, 1_699_992_800_000_000)), ""},
		"a fence that was forgotten, the clock right": {newStory().
			at(10).logs("SET Lock:n T PXAT @110; SET {Lock:n}:fence 9 PXAT @900").at(12).logs("DEL Lock:n").at(20).lost(0).
			at(40).logs("SET Lock:n U PXAT @140; SET {Lock:n}:fence 5 PXAT @900").at(42).logs("DEL Lock:n").
			tells(held("a", "T", 9, 11, 12, 9)).tells(held("b", "U", 39, 41, 42, 5)), "fence 9"},
		"a stale write is taken": {newStory().
			tells(record{Op: opRegister, Name: "n", Fence: 8, Call: 1, Return: 2, Result: done}).
			tells(record{Op: opRegister, Name: "n", Fence: 7, Call: 3, Return: 4, Result: done}), "was taken after"},
		"a stale write is refused": {newStory().
			tells(record{Op: opRegister, Name: "n", Fence: 7, Call: 3, Return: 4, Result: refused}), ""},
		"a holder's write is refused": {newStory().
			tells(record{Op: opRegister, Name: "n", Fence: 7, Call: 3, Return: 4, From: 3, Until: 4, Result: refused}), "holder's write"},
		"a holder's write is refused, and a higher fence was written": {newStory().
			tells(record{Op: opRegister, Name: "n", Fence: 8, Call: 1, Return: 2, Result: done}).
			tells(record{Op: opRegister, Name: "n", Fence: 7, Call: 3, Return: 4, From: 3, Until: 4, Result: refused}), "holder's write"},
		"a holder's write is refused, as a fence was forgotten": {newStory().
			at(1).logs("SET {Lock:n}:fence 1700003600000000 PXAT @900").at(2).lost(0).at(3).jump(-2 * time.Hour).
			tells(record{Op: opRegister, Name: "n", Fence: 1_700_003_600_000_000, Call: 1, Return: 2, Result: done}).
			tells(record{Op: opRegister, Name: "n", Fence: 7, Call: 30, Return: 40, From: 30, Until: 40, Result: refused}), ""},
		"an Unlock that released nothing": {newStory().
			at(10).logs("SET Lock:n T PXAT @30").at(31).logs("DEL Lock:n").
			tells(record{Op: opHold, Name: "n", Token: digest("T"), Call: 9, Got: 11, From: 11, Until: 20, Unlock: 50, Return: 51, Result: done}), "was told so"},
		"an Unlock that left the key": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(111).logs("DEL Lock:n").
			tells(held("a", "T", 9, 11, 20, 0)), "was told so"},
		"an extension that was not": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").
			tells(record{Op: opExtendLock, Name: "n", Token: digest("T"), TTL: 100 * ms, Call: 50, Return: 51, Result: done}), "knows nothing of it"},
		"held again": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(90).logs("DEL Lock:n").
			tells(record{Op: opHold, Name: "n", Token: digest("T"), Call: 9, Got: 11, From: 11, Until: 60, Return: 50, Result: expired}), "held n again"},
		"waits for what nobody has": {lasting(20_000).
			at(10).logs("SET Lock:n T PXAT @110").at(111).logs("DEL Lock:n").
			tells(record{Op: opTake, Name: "n", Call: 50, Return: 9000, Result: ctxEnded}), "and nobody had it in"},
		"waits for what somebody has": {lasting(20_000).
			at(10).logs("SET Lock:n T PXAT @8000").at(7000).logs("DEL Lock:n").at(8000).logs("SET Lock:n U PXAT @9000").at(8900).logs("DEL Lock:n").
			tells(record{Op: opTake, Name: "n", Call: 50, Return: 15_000, Result: ctxEnded}), ""},
		"locked by nobody": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(11).logs("DEL Lock:n").
			tells(record{Op: opTake, Name: "n", Call: 500, Return: 510, Result: locked}), "nobody had it"},
		"an operation that never returned": {newStory().
			tells(record{Op: opTake, Name: "n", Call: 500}), "never returned"},
		"late": {newStory().
			tells(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "v", Call: 1, Limit: 2, Return: 2000, Result: unknown}), "after its context had ended"},
		"late, as the process was": {newStory().
			tells(record{Op: opStall, Call: 10, Return: 1990, Result: done}).
			tells(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "v", Call: 1, Limit: 2, Return: 2000, Result: unknown}), ""},
		"stuck": {newStory().tells(record{Op: opStuck, Name: "2 goroutines", Call: 1, Return: 2, Result: refused}), "stuck: 2 goroutines"},

		"a task is done": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs(gone).said(opDequeue, "", 430, 0, done), ""},
		"a task is done, and nobody has said so": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs(gone), "nobody has asked"},
		"a task is done with another receipt": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs(gone).said(opDequeue, "", 429, 0, unknown), "nobody has asked"},
		"a task is done by a refused operation": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs(gone).said(opDequeue, "", 430, 0, stale), "nobody has asked"},
		"a receipt is good twice": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs(gone).said(opDequeue, "", 430, 0, done).said(opDequeue, "", 430, 0, done), "another has had it"},
		"done, and still there": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).said(opDequeue, "", 430, 0, done), "another has had it"},
		"handed out early": {newStory().at(10).enqueued("v", 100).claimed("v", 1, 50), "early"},
		"handed out within a lease": {newStory().
			at(10).enqueued("v", 10).claimed("v", 1, 20).claimed("v", 2, 300), "early"},
		"two hands": {newStory().
			at(10).enqueued("v", 10).claimed("v", 1, 20).claimed("v", 2, 300), "two hands at once"},
		"handed out after a lease": {newStory().
			at(10).enqueued("v", 10).claimed("v", 1, 20).claimed("v", 2, 500).at(510).logs(gone).said(opDequeue, "", 900, 0, done), ""},
		"an attempt is not counted": {newStory().
			at(10).enqueued("v", 10).claimed("v", 1, 20).claimed("v", 1, 500), "was extended, and nobody"},
		"changed beyond recognition": {newStory().
			at(10).enqueued("v", 10).claimed("v", 1, 20).at(30).logs("HSET {Queue:loop}:tasks t 7:@@420::w"), ": {queued:true"},
		"an attempt is counted twice": {newStory().at(10).enqueued("v", 10).claimed("v", 2, 20), "attempt 2 after 0"},
		"a delivery that the witness doesn't know": {newStory().
			at(20).said(opDelivery, "v", 430, 1, done), "doesn't know it"},
		"a delivery of another version": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).said(opDelivery, "w", 430, 1, done), "doesn't know it"},
		"one claim for two": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).said(opDelivery, "v", 430, 1, done), "handed out 2 times"},
		"an enqueue that was not written": {newStory().
			tells(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "v", Call: 1, Return: 2, Result: done, Outcome: 1}), "never written"},
		"an enqueue that was cut off": {newStory().at(10).enqueued("v", 20).at(30).lost(0), ""},
		"an enqueue that was refused, and written": {newStory().
			at(10).logs("ZADD Queue:loop @@20 t; HSET {Queue:loop}:tasks t :::v").
			tells(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "v", Call: 9, Return: 20, Result: refused}), "was refused"},
		"a task that nobody has enqueued": {newStory().
			at(10).logs("ZADD Queue:loop @@20 t; HSET {Queue:loop}:tasks t :::v"), "nobody has asked"},
		"a task that is left": {newStory().at(10).enqueued("v", 20), "still there when all is quiet"},
		"a field that is left": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs("ZREM Queue:loop t").said(opDequeue, "", 430, 0, done), "half there"},
		"what was deferred takes over": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs("HSET {Queue:loop}:tasks t 1:@@430:@@50:w").
			tells(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "w", Call: 40, Return: 41, Delay: 10 * ms, Result: done, Outcome: 4}).
			at(45).logs("ZREM Queue:loop t; ZADD Queue:loop @@50 t; HSET {Queue:loop}:tasks t :::w").said(opDequeue, "", 430, 0, done).
			claimed("w", 1, 60).at(70).logs(gone).said(opDequeue, "", 460, 0, done), ""},
		"what was deferred is dropped": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).logs("HSET {Queue:loop}:tasks t 1:@@430:@@50:w").
			tells(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "w", Call: 40, Return: 41, Delay: 10 * ms, Result: done, Outcome: 4}).
			at(45).logs(gone).said(opDequeue, "", 430, 0, done), "nobody has asked"},
		"a version that replaces one in a lease": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).enqueued("w", 50), "while somebody held it"},
		"stale, and good": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).at(40).said(opDequeue, "", 430, 0, stale).
			at(60).logs(gone).said(opDequeue, "", 430, 0, done), "the witness has its receipt"},
		"stale, as it was used": {newStory().
			at(10).enqueued("v", 20).claimed("v", 1, 30).at(60).logs(gone).said(opDequeue, "", 430, 0, done).
			at(70).said(opDequeue, "", 430, 0, stale), ""},
		"not held, and there": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(60).logs("DEL Lock:n").
			tells(told(notHeld, held("a", "T", 9, 11, 19, 0))), "is not held, and the witness has it"},
		"not held, as all were released": {newStory().
			at(10).logs("SET Lock:n T PXAT @110").at(60).logs("DEL Lock:n").
			tells(record{Op: opUnlockAll, Name: "all", Call: 15, Return: 70, Result: unknown}).
			tells(told(notHeld, held("a", "T", 9, 11, 19, 0))), ""},
		"a handler that goes on": {newStory().
			at(10).added(workQueue, "v", 10).at(20).leased(workQueue, "v", 1, 420).handled("a", 420, 1, 21, 890).
			at(895).leased(workQueue, "v", 2, 1295).handled("b", 1295, 2, 896, 900).
			at(902).logs("ZREM Queue:work t; HDEL {Queue:work}:tasks t"), "after its lease"},
		"popped, and given to nobody": {newStory().
			at(10).added(popQueue, "v", 10).at(40).logs("ZREM Queue:pop t; HDEL {Queue:pop}:tasks t"), "nobody was given it"},
		"popped, and the answer lost": {newStory().
			at(10).added(popQueue, "v", 10).at(40).logs("ZREM Queue:pop t; HDEL {Queue:pop}:tasks t").
			tells(record{Op: opPopping, Name: popQueue, Call: 39, Return: 50, Result: unknown}), ""},
		"claimed, and given to nobody": {newStory().
			at(10).added(loopQueue, "v", 10).at(20).leased(loopQueue, "v", 1, 420), "nobody was given it"},
		"a cancel that did nothing": {newStory().at(40).said(opCancel, "", 0, 0, done), "said yes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wrong, _ := check(&c.story.evidence)
			if c.wrong == "" {
				require.Empty(t, wrong)
				return
			}
			require.Contains(t, strings.Join(wrong, "\n"), c.wrong)
		})
	}
}
