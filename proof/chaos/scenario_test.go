package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// scenario builds evidence. Its times are in milliseconds.
type scenario struct {
	evidence
	now time.Duration
}

const ms = time.Millisecond

func newScenario() *scenario {
	s := &scenario{}
	s.clock.ahead = 1_700_000_000 * time.Second
	s.ended = 1000 * ms
	s.deaths, s.stops = map[string]time.Duration{}, map[string][]span{}
	return s
}

// lasting returns a scenario that ends then.
func lasting(end time.Duration) *scenario {
	s := newScenario()
	s.ended = end * ms
	return s
}

// dies has a process killed.
func (s *scenario) dies(process string, at time.Duration) *scenario {
	s.deaths[process] = at * ms
	return s
}

// at sets the time of what follows.
func (s *scenario) at(now time.Duration) *scenario {
	s.now = now * ms
	return s
}

// logs adds a transaction to the log; its commands are separated by ";". A number with an "@"
// is a time of the server, in milliseconds; with "@@", in seconds. A transaction that does not
// mention the list of leased tasks changes it like the library.
func (s *scenario) logs(transaction string) *scenario {
	e := entry{span: span{s.now, s.now + ms}}
	if !strings.Contains(transaction, ":leased ") {
		transaction = listing.Replace(leasing.ReplaceAllString(transaction, "$0; ZADD {$1}:leased $2 t"))
	}
	for command := range strings.SplitSeq(transaction, "; ") {
		words := strings.Fields(command)
		for i, word := range words {
			words[i] = inGroup(s.times(word))
			if strings.HasSuffix(words[max(i-1, 0)], ":paused") || strings.HasSuffix(words[max(i-2, 0)], ":results") {
				words[i] = strings.ReplaceAll(words[i], "_", " ") // a text of several words
			}
		}
		e.commands = append(e.commands, words)
	}
	s.log = append(s.log, e)
	return s
}

// leasing finds a state field with a lease, listing the removals from a queue.
var (
	leasing = regexp.MustCompile(`HSET {(Queue:[\w:]+)}:state t [\d+]*:(@@\d+)\S*`)
	listing = strings.NewReplacer(
		"ZREM Queue:many:1 t", "ZREM {Queue:many:1}:leased t; ZREM Queue:many:1 t",
		"ZREM Queue:loop t", "ZREM {Queue:loop}:leased t; ZREM Queue:loop t",
		"ZREM Queue:work t", "ZREM {Queue:work}:leased t; ZREM Queue:work t")
)

// times replaces the times in a word of a command.
func (s *scenario) times(word string) string {
	if word == "''" {
		return ""
	}
	if end, token, ok := strings.Cut(word, "/"); ok {
		return s.times(end) + "/" + s.times(token)
	}
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

// score returns a time of the server as a score.
func (s *scenario) score(n int) float64 {
	x, _ := strconv.ParseFloat(fmt.Sprintf("%.6f", (s.clock.ahead+time.Duration(n)*ms).Seconds()), 64)
	return x
}

// recorded adds a record of a client.
func (s *scenario) recorded(r record) *scenario {
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

// held returns the record of a lock that was held from from until until, and released.
func held(process, token string, call, from, until time.Duration, fence int64) record {
	return record{Process: process, Op: opHold, Name: "n", Token: digest(token), Call: call, Got: from, From: from,
		Until: until, Unlock: until, Return: until + 1, Deadline: until + 1, Fence: fence, Result: done}
}

// permit returns the record of a permit that was held from from until until, and released.
func permit(process, token string, call, from, until time.Duration) record {
	r := held(process, token, call, from, until, 0)
	r.Name = "gate"
	return r
}

// withResult returns a record with another result.
func withResult(res result, r record) record {
	r.Result = res
	return r
}

// withToken returns a record with another token.
func withToken(token uint64, r record) record {
	r.Token = token
	return r
}

// unlockedAfter returns a record whose Unlock was called so long after its deadline.
func unlockedAfter(late time.Duration, r record) record {
	r.Unlock = r.Deadline + late
	return r
}

// heldFor returns a record with a TTL.
func heldFor(ttl time.Duration, r record) record {
	r.TTL = ttl * ms
	return r
}

// halfAhead has the server's clock show half a millisecond more.
func (s *scenario) halfAhead() *scenario {
	s.clock.ahead += ms / 2
	return s
}

// lost marks the entries of the log from an index on as cut off by a restart now.
func (s *scenario) lost(from int) *scenario {
	for i := from; i < len(s.log); i++ {
		s.log[i].lost = true
	}
	s.log = append(s.log, entry{rewind: true, span: span{s.now, s.now + 10*ms}})
	return s
}

// ticks has the server answer a tick.
func (s *scenario) ticks() *scenario {
	return s.logs(fmt.Sprint("PEXPIREAT ", tickKey, " ", tickBase+s.now.Microseconds()))
}

// forgets loses what the server acknowledges until then, without a trace in the log.
func (s *scenario) forgets(until time.Duration) *scenario {
	s.gaps = append(s.gaps, span{s.now, until * ms})
	return s
}

// jump sets the server's clock now.
func (s *scenario) jump(offset time.Duration) *scenario {
	s.clock.jumps = append(s.clock.jumps, jump{span{s.now, s.now}, offset})
	return s
}

// aboutThen sets the server's clock at some time between two.
func (s *scenario) aboutThen(after, before time.Duration, offset time.Duration) *scenario {
	s.clock.jumps = append(s.clock.jumps, jump{span{after * ms, before * ms}, offset})
	return s
}

// added enqueues a task "t" that is due then.
func (s *scenario) added(queue, version string, due int) *scenario {
	s.logs(fmt.Sprintf("ZADD Queue:%s @@%d t; HSET {Queue:%[1]s}:tasks t %[3]s", queue, due, version))
	now := s.now / ms
	return s.recorded(record{Op: opEnqueue, Name: queue, ID: "t", Version: version, Call: now, Return: now + 1, Result: done, Outcome: 1,
		Delay: time.Duration(due)*ms - s.now})
}

// leased claims it, in the log only.
func (s *scenario) leased(queue string, attempt, until int) *scenario {
	return s.logs(fmt.Sprintf("ZREM Queue:%s t; ZADD Queue:%[1]s @@%[2]d t; HSET {Queue:%[1]s}:state t %[3]d:@@%[2]d:", queue, until, attempt))
}

// handled records a Worker's handler of it, whose context ended at until.
func (s *scenario) handled(process string, receipt, attempt int, call, until time.Duration) *scenario {
	return s.recorded(record{Process: process, Op: opHandle, Name: workQueue, ID: "t", Version: "v", Attempt: attempt,
		Call: call, Until: until, Return: until + 1, Score: s.score(receipt), Delivery: s.score(receipt), Result: done})
}

// answered records a Worker's handler of it, which was called then, and has returned that.
func (s *scenario) answered(r result, delay time.Duration, receipt int, call time.Duration) *scenario {
	return s.recorded(record{Process: "p", Op: opHandle, Name: workQueue, ID: "t", Version: "v", Attempt: 1, Delay: delay * ms,
		Call: call, Until: call + 1, Return: call + 2, Score: s.score(receipt), Delivery: s.score(receipt), Result: r})
}

// enqueued enqueues a task "t" of the loop queue, with a payload that begins with version.
func (s *scenario) enqueued(version string, due int) *scenario {
	s.logs(fmt.Sprintf("ZADD Queue:loop @@%d t; HDEL {Queue:loop}:state t; HSET {Queue:loop}:tasks t %s", due, version))
	now := s.now / ms
	return s.recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: version, Call: now, Return: now + 1, Result: done, Outcome: 1,
		Delay: time.Duration(due)*ms - s.now})
}

// replaced enqueues "t" again with that policy, due at that time, and gets the score written.
func (s *scenario) replaced(policy sluice.Duplicates, version string, due, written int) *scenario {
	s.logs(fmt.Sprintf("ZADD Queue:loop @@%d t; HSET {Queue:loop}:tasks t %s", written, version))
	now := s.now / ms
	return s.recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: version, Call: now, Return: now + 1, Result: done, Outcome: 2,
		Policy: int(policy), Delay: time.Duration(due)*ms - s.now})
}

// claimed claims "t" at that time.
func (s *scenario) claimed(version string, attempt, now int) *scenario {
	s.at(time.Duration(now)).logs(fmt.Sprintf("ZREM Queue:loop t; ZADD Queue:loop @@%d t; HSET {Queue:loop}:state t %d:@@%d:", now+400, attempt, now+400))
	return s.settled(opDelivery, version, now+400, attempt, done)
}

// reclaimed claims "t" again at that time, after a delivery that does not count.
func (s *scenario) reclaimed(version string, attempt, unseen, now int) *scenario {
	s.at(time.Duration(now)).logs(fmt.Sprintf("ZREM Queue:loop t; ZADD Queue:loop @@%d t; HSET {Queue:loop}:state t %d+%d:@@%d:", now+400, attempt, unseen, now+400))
	return s.settled(opDelivery, version, now+400, attempt, done)
}

// settled records an operation on the delivery of "t" with that receipt.
func (s *scenario) settled(kind op, version string, receipt, attempt int, r result) *scenario {
	return s.settledOn(loopQueue, kind, version, receipt, attempt, r)
}

// settledOn is settled on another queue.
func (s *scenario) settledOn(queue string, kind op, version string, receipt, attempt int, r result) *scenario {
	now := s.now / ms
	return s.recorded(record{Op: kind, Name: queue, ID: "t", Version: version, Attempt: attempt, Call: now, Return: now + 1,
		Score: s.score(receipt), Delivery: s.score(receipt), Result: r})
}

// extendedTwice has a claim of a lease that ends at 430, and extensions to 440 and, after that, to 900.
func (s *scenario) extendedTwice() *scenario {
	extends := func(call int) record {
		return record{Op: opExtend, Name: loopQueue, ID: "t", Call: time.Duration(call), Return: time.Duration(call + 2), Score: s.score(430), Delivery: s.score(430), Result: done}
	}
	return s.at(10).enqueued("v", 20).claimed("v", 1, 30).
		at(40).logs("ZREM Queue:loop t; ZADD Queue:loop @@440 t; HSET {Queue:loop}:state t 1:@@440/@@430:").recorded(extends(39)).
		at(450).logs("ZREM Queue:loop t; ZADD Queue:loop @@900 t; HSET {Queue:loop}:state t 1:@@900/@@430:").recorded(extends(449))
}

const gone = "ZREM Queue:loop t; HDEL {Queue:loop}:tasks t; HDEL {Queue:loop}:state t"
