package main

import (
	"fmt"
	"time"
)

// ticked writes an occurrence of the task "tick50", which is due then; said is what its header
// says.
func (s *scenario) ticked(due, said int) *scenario {
	return s.logs(fmt.Sprintf("ZADD Queue:ticks @@%d tick50; HSET {Queue:ticks}:tasks tick50 %s", due, s.occurrence(said)))
}

// tookTick claims it then, as the handler of an occurrence records; if that is 0, no handler
// begins.
func (s *scenario) tookTick(at, of int) *scenario {
	s.logs(fmt.Sprintf("ZADD {Queue:ticks}:leased @@%[1]d tick50; ZREM Queue:ticks tick50; ZADD Queue:ticks @@%[1]d tick50; HSET {Queue:ticks}:state tick50 1:@@%[1]d:", at+400))
	if of == 0 {
		return s
	}
	return s.recorded(record{Op: opHandle, Name: tickQueue, ID: "tick50", Version: occurrenceOf(s.serverTime(of)), Attempt: 1, Result: done,
		Call: s.now/ms + 1, Until: s.now/ms + 2, Return: s.now/ms + 2, Score: s.score(at + 400), Delivery: s.score(at + 400)})
}

// placed lets an occurrence wait behind the present one's lease.
func (s *scenario) placed(due, lease int) *scenario {
	return s.logs(fmt.Sprintf("HSET {Queue:ticks}:tasks tick50 %s; HSET {Queue:ticks}:state tick50 1:@@%d:@@%d", s.occurrence(due), lease, due))
}

// concluded puts the next occurrence in the place of the present one.
func (s *scenario) concluded(due int) *scenario {
	return s.logs(fmt.Sprintf("ZREM Queue:ticks tick50; ZADD Queue:ticks @@%d tick50; ZREM {Queue:ticks}:leased tick50; HDEL {Queue:ticks}:state tick50; HSET {Queue:ticks}:tasks tick50 %s",
		due, s.occurrence(due)))
}

// handledTick has the present occurrence keep the place of the next one.
func (s *scenario) handledTick(due int) *scenario {
	return s.logs(fmt.Sprintf("ZREM Queue:ticks tick50; ZADD Queue:ticks @@%d tick50; ZREM {Queue:ticks}:leased tick50; HDEL {Queue:ticks}:state tick50; HSET {Queue:ticks}:tasks tick50 %s",
		due, s.occurrence(due)+s.handledBefore(due)))
}

func (s *scenario) handledBefore(at int) string {
	before := occurrenceOf(s.serverTime(at))
	return "\x14sluice-period-before" + string(rune(len(before))) + before
}

func (s *scenario) serverTime(at int) time.Time {
	return time.Unix(0, int64(s.clock.ahead+time.Duration(at)*ms)).UTC()
}

func (s *scenario) occurrence(at int) string {
	due := occurrenceOf(s.serverTime(at))
	return frameStart + "\x01.sluice-period" + string(rune(len(due))) + due + "\x13sluice-period-after"
}

// closeTick has the next occurrence be due right before the lease's end, so that its score counts on
// from that: by so many microseconds.
func closeTick(on float64) *scenario {
	s := newScenario().at(10).ticked(50, 50).at(51)
	lease := s.score(450) + 64e-6
	s.logs(fmt.Sprintf("ZADD {Queue:ticks}:leased %[1]f tick50; ZREM Queue:ticks tick50; ZADD Queue:ticks %[1]f tick50; HSET {Queue:ticks}:state tick50 1:%[1]f:", lease))
	s.recorded(record{Op: opHandle, Name: tickQueue, ID: "tick50", Version: occurrenceOf(s.serverTime(50)), Attempt: 1, Result: done, Call: 52, Until: 53, Return: 53,
		Score: lease, Delivery: lease})
	return s.at(420).logs(fmt.Sprintf("ZREM Queue:ticks tick50; ZADD Queue:ticks %f tick50; ZREM {Queue:ticks}:leased tick50; HDEL {Queue:ticks}:state tick50; HSET {Queue:ticks}:tasks tick50 %s",
		lease+on*1e-6, s.occurrence(450)))
}

const tickGone = "ZREM {Queue:ticks}:leased tick50; ZREM Queue:ticks tick50; HDEL {Queue:ticks}:state tick50; HDEL {Queue:ticks}:tasks tick50"

// buriedTick buries an occurrence after so many claims, of which no worker has told the end.
func buriedTick(claims int) *scenario {
	s := lasting(5000).at(10).ticked(50, 50)
	for i, field := range []string{"1", "1+1", "1+2", "2+2", "3+2", "4+2", "5+2"}[:claims] {
		s.at(time.Duration(50 + 410*i)).logs(fmt.Sprintf("ZADD {Queue:ticks}:leased @@%[1]d tick50; ZREM Queue:ticks tick50; ZADD Queue:ticks @@%[1]d tick50; HSET {Queue:ticks}:state tick50 %[2]s:@@%[1]d:", 450+410*i, field))
	}
	return s.at(3500).logs("ZREM {Queue:ticks}:leased tick50; ZREM Queue:ticks tick50; ZADD {Queue:ticks}:dead @@3500 tick50; HSET {Queue:ticks}:state tick50 5:dead:used")
}

// tickCases are about periodic tasks.
var tickCases = map[string]checkCase{
	"the next follows the lease's end, of just then":  {closeTick(1), ""},
	"the next is due after the lease's end, for none": {closeTick(30), "and is due at"},
	"a handler is told of another occurrence": {newScenario().
		at(10).ticked(50, 50).at(55).tookTick(55, 100).at(60).concluded(100), "the log does not have it"},
	"an occurrence is handled": {newScenario().
		at(10).ticked(50, 50).at(50).tookTick(50, 50).at(60).concluded(100), ""},
	"an occurrence is claimed, and its handler does not begin": {newScenario().
		at(10).ticked(50, 50).at(50).tookTick(50, 0).at(60).concluded(100), ""},
	"an occurrence that no schedule has": {newScenario().
		at(10).ticked(70, 70), "is due at"},
	"an occurrence that is due at another time than its header says": {newScenario().
		at(10).ticked(100, 50), "is due at"},
	"an occurrence that comes early": {newScenario().
		at(10).ticked(100, 100).at(50).tookTick(50, 100), "early"},
	"a next occurrence that no schedule has": {newScenario().
		at(10).ticked(50, 50).at(50).tookTick(50, 50).at(58).concluded(110), "is due at"},
	"a later occurrence takes the place of one that waits": {newScenario().
		at(10).ticked(50, 50).at(20).ticked(100, 100), "against policy"},
	"an occurrence that waits behind a lease": {newScenario().
		at(10).ticked(50, 50).at(50).tookTick(50, 50).at(58).placed(100, 450), "was deferred"},
	"an occurrence is handled again": {newScenario().
		at(10).ticked(50, 50).at(50).tookTick(50, 50).at(60).concluded(50), "took the place of"},
	"an occurrence keeps its place, as it was handled an hour early: the clock was set back": {newScenario().
		at(5).jump(3600*1000*ms).at(10).ticked(3600_050, 3600_050).at(50).tookTick(3600_050, 0).at(51).
		jump(0).at(52).logs("ZREM Queue:ticks tick50; ZADD Queue:ticks @@60 tick50; ZREM {Queue:ticks}:leased tick50; HDEL {Queue:ticks}:state tick50").
		at(60).tookTick(60, 3600_050).at(65).concluded(3600_050), ""},
	"an occurrence that was put back is enqueued again": {newScenario().
		at(10).ticked(50, 50).at(50).tookTick(50, 0).at(60).
		logs("ZREM Queue:ticks tick50; ZADD Queue:ticks @@160 tick50; ZREM {Queue:ticks}:leased tick50; HDEL {Queue:ticks}:state tick50").
		at(70).ticked(50, 50), ""},
	"an occurrence is handled, and it is not known which is next": {newScenario().
		at(10).ticked(50, 50).at(50).tookTick(50, 50).at(60).handledTick(50).at(62).tookTick(62, 0).at(64).concluded(100), ""},
	"an occurrence comes back that was handled": {newScenario().
		at(10).ticked(50, 50).at(50).tookTick(50, 50).at(60).handledTick(50).at(62).tookTick(62, 0).at(64).concluded(50), "took the place of"},
	"an occurrence that was not begun is handled": {newScenario().
		at(10).ticked(50, 50).at(20).handledTick(50), "took the place of"},
	"a periodic task is removed": {newScenario().
		at(10).ticked(50, 50).at(50).tookTick(50, 50).at(60).logs(tickGone), "was removed"},
	"an occurrence is followed, as the clock had ended its lease": {newScenario().
		at(10).ticked(50, 50).at(50).tookTick(50, 50).at(55).jump(3600 * 1000 * ms).at(60).concluded(3600_100), ""},
	"a periodic task is removed, as the clock had ended its lease": {newScenario().
		at(10).ticked(50, 50).at(50).tookTick(50, 50).at(55).jump(3600 * 1000 * ms).at(60).logs(tickGone), "was removed"},
	"an occurrence comes back that others have followed": {newScenario().
		at(10).ticked(50, 50).at(50).tookTick(50, 50).at(60).concluded(100).
		at(100).tookTick(100, 100).at(104).concluded(150).at(106).ticked(100, 100), "took the place of"},
	"an occurrence is followed by an earlier one, as the clock was set back": {newScenario().
		at(5).jump(3600*1000*ms).at(10).ticked(3600_050, 3600_050).at(50).tookTick(3600_050, 3600_050).at(55).jump(0).
		at(60).concluded(100), ""},
	"a periodic task is buried, and enqueued again": {buriedTick(7).at(3600).logs("ZREM {Queue:ticks}:dead tick50; HDEL {Queue:ticks}:state tick50; " +
		"ZADD Queue:ticks @@3650 tick50; HSET {Queue:ticks}:tasks tick50 " + newScenario().occurrence(3650)), ""},
	"a periodic task is buried, and is not back yet":            {buriedTick(7), ""},
	"a periodic task is buried before its attempts are used up": {buriedTick(6), "was buried"},
	"a periodic task is half there": {newScenario().
		at(10).ticked(50, 50).at(20).logs("HDEL {Queue:ticks}:tasks tick50"), "half there"},
}
