package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// inGroup returns a word of a command as the log has it: "&" in front of a state field is the group
// "g"; "!g:<ID>" is its member in play, and "~g:<due>:<ID>" its member that waits.
func inGroup(word string) string {
	switch parts := strings.Split(word, ":"); {
	case strings.HasPrefix(word, "&"):
		return "@1:g" + word[1:]
	case parts[0] == "!g":
		return "!g\x00" + parts[1]
	case parts[0] == "~g":
		due, _ := strconv.ParseFloat(parts[1], 64)
		return fmt.Sprintf("~g\x00%016.0f%s", due*1e6, parts[2])
	}
	return word
}

// What the library does with a task ID that is due at D, leased until U.
const (
	playing    = "ZADD {Queue:loop}:groups 0 !g:ID; ZADD Queue:loop @@D ID; HSET {Queue:loop}:state ID &::"
	awaiting   = "ZADD {Queue:loop}:groups 0 ~g:@@D:ID; HSET {Queue:loop}:state ID &::@@D"
	payload    = "; HSET {Queue:loop}:tasks ID vID"
	promoting  = "ZREM {Queue:loop}:groups ~g:@@D:ID; " + playing
	displacing = "ZREM Queue:loop ID; ZREM {Queue:loop}:groups !g:ID; " + awaiting
	claiming   = "ZREM {Queue:loop}:leased ID; ZREM Queue:loop ID; ZADD Queue:loop @@D ID; ZADD {Queue:loop}:leased @@D ID; HSET {Queue:loop}:state ID &1:@@D:"
	unqueued   = "ZREM {Queue:loop}:leased ID; ZREM Queue:loop ID; HDEL {Queue:loop}:tasks ID; HDEL {Queue:loop}:state ID"
	unplaced   = "; ZREM {Queue:loop}:groups !g:ID"
	leaving    = unqueued + unplaced
	unawaited  = "HDEL {Queue:loop}:tasks ID; HDEL {Queue:loop}:state ID; ZREM {Queue:loop}:groups ~g:@@D:ID"
)

// of returns that of a task.
func of(what, id string, due int) string {
	return strings.NewReplacer("ID", id, "@@D", fmt.Sprint("@@", due)).Replace(what)
}

// both returns what one script does.
func both(parts ...string) string { return strings.Join(parts, "; ") }

// ofGroup returns a record of a task in "g" that is about now.
func (s *scenario) ofGroup(what op, id string) record {
	now := s.now / ms
	return record{Op: what, Name: loopQueue, ID: id, Group: "g", Call: now, Return: now + 1, Result: done}
}

// asked records an enqueue of a task that is due then.
func (s *scenario) asked(id string, due int) *scenario {
	r := s.ofGroup(opEnqueue, id)
	r.Version, r.Outcome, r.Delay = "v"+id, int(sluice.OutcomeAdded), time.Duration(due)*ms-s.now
	return s.recorded(r)
}

// plays enqueues a task into play, and awaits one that waits.
func (s *scenario) plays(id string, due int) *scenario {
	return s.logs(of(playing+payload, id, due)).asked(id, due)
}

func (s *scenario) awaits(id string, due int) *scenario {
	return s.logs(of(awaiting+payload, id, due)).asked(id, due)
}

// got records that "a" got a task with the lease of a claim at that time.
func (s *scenario) got(id string, claim int) *scenario {
	r := s.ofGroup(opDelivery, id)
	r.Version, r.Attempt, r.Score, r.Delivery = "v"+id, 1, s.score(claim+400), s.score(claim+400)
	return s.recorded(r)
}

// takesOne claims a task now.
func (s *scenario) takesOne(id string) *scenario {
	now := int(s.now / ms)
	return s.logs(of(claiming, id, now+400)).got(id, now)
}

// settles records a call about a task that was claimed at that time.
func (s *scenario) settles(what op, id string, claim int) *scenario {
	r := s.ofGroup(what, id)
	r.Score, r.Delivery = s.score(claim+400), s.score(claim+400)
	return s.recorded(r)
}

// cancels records the Cancel of a task.
func (s *scenario) cancels(id string) *scenario { return s.recorded(s.ofGroup(opCancel, id)) }

// aThenB has "a" in play, which is claimed at 30, and "b" wait.
func aThenB() *scenario {
	return newScenario().at(10).plays("a", 10).awaits("b", 20).at(30).takesOne("a").at(40)
}

// endsB claims "b" at 50, and finishes it.
func (s *scenario) endsB() *scenario {
	return s.at(50).takesOne("b").at(60).logs(of(leaving, "b", 0)).settles(opDequeue, "b", 50)
}

// perGroup gives the loop queue another PerGroup.
func (s *scenario) perGroup(n int) *scenario {
	now := s.now / ms
	s.logs(fmt.Sprintf("DEL {Queue:loop}:paused; SET {Queue:loop}:paused 0_0_0_0_0_%d_0", n))
	return s.recorded(record{Op: opSetLimits, Name: loopQueue, Limits: sluice.Limits{PerGroup: n}, Call: now, Return: now + 1, Result: done})
}

// early has "a", which is due sooner than "b" in play, take its place, and both cancelled.
func early() *scenario {
	s := newScenario().at(10).plays("b", 200).logs(both(of(awaiting, "a", 100), of(displacing, "b", 200), of(promoting+payload, "a", 100))).asked("a", 100)
	return s.at(30).logs(both(of(leaving, "a", 0), of(promoting, "b", 200))).cancels("a").logs(of(leaving, "b", 0)).cancels("b")
}

// strangerEnds has one who knows of no groups finish "a" of two.
func strangerEnds() *scenario {
	s := newScenario().at(10).plays("a", 10).awaits("b", 20).at(30).logs(of(unqueued, "a", 0))
	r := s.ofGroup(opDequeue, "a")
	r.Score = s.score(10)
	return s.recorded(r)
}

func byStranger(r *record) { r.Stranger = true }

// sweeps has a Worker see to that.
func (s *scenario) sweeps() *scenario {
	return s.at(45).logs(both("ZREM {Queue:loop}:groups !g:a", of(promoting, "b", 20)))
}

const burying = "ZREM {Queue:loop}:leased ID; ZREM Queue:loop ID; ZADD {Queue:loop}:dead @@D ID; HSET {Queue:loop}:state ID &1:dead:no"

// atOnce has "a" handed out at 30, and "b" at 41, since something has ended "a" in the log.
func atOnce() *scenario {
	return aThenB().logs(both(of(leaving, "a", 0), of(promoting, "b", 20))).at(41).takesOne("b").
		at(60).logs(of(leaving, "b", 0)).settles(opDequeue, "b", 41)
}

// handles records a Worker's handler of a task that was claimed at that time.
func (s *scenario) handles(id string, claim int, call, until time.Duration) *scenario {
	r := s.ofGroup(opHandle, id)
	r.Version, r.Attempt, r.Score, r.Delivery, r.Call, r.Until, r.Return = "v"+id, 1, s.score(claim+400), s.score(claim+400), call, until, until+1
	return s.recorded(r)
}

// workers has Workers handle "a" until then, which has ended in the log at 40, and then "b".
func workers(until time.Duration) *scenario {
	s := newScenario().at(10).plays("a", 10).awaits("b", 20).at(30).logs(of(claiming, "a", 430)).handles("a", 30, 31, until)
	s.at(40).logs(both(of(leaving, "a", 0), of(promoting, "b", 20))).at(41).logs(of(claiming, "b", 441)).handles("b", 41, 42, 50)
	s.at(55).logs(of(leaving, "b", 0))
	for i := range s.log {
		for _, command := range s.log[i].commands {
			command[1] = strings.ReplaceAll(command[1], "Queue:loop", "Queue:work")
		}
	}
	for i := range s.records {
		s.records[i].Name = workQueue
	}
	return s
}

// groupCases are about groups.
var groupCases = map[string]checkCase{
	"group: one after the other":         {aThenB().logs(both(of(leaving, "a", 0), of(promoting, "b", 20))).settles(opDequeue, "a", 30).endsB(), ""},
	"group: the next is in play at once": {aThenB().logs(both(of(leaving, "a", 0), of(promoting, "b", 20), of(claiming, "b", 440))).settles(opDequeue, "a", 30).got("b", 40).at(60).logs(of(leaving, "b", 0)).settles(opDequeue, "b", 40), ""},
	"group: a sooner one":                {early(), ""},
	"group: a dead letter": {aThenB().logs(both(of(burying+unplaced, "a", 40), of(promoting, "b", 20))).settles(opBury, "a", 30).endsB().
		at(70).logs("ZREM {Queue:loop}:dead a; " + of(playing, "a", 70)).recorded(newScenario().at(70).ofGroup(opRevive, "a")).
		at(80).logs(of(leaving, "a", 0)).cancels("a"), ""},
	"group: one that waits is cancelled": {aThenB().logs(of(unawaited, "b", 20)).cancels("b").at(45).logs(of(leaving, "a", 0)).settles(opDequeue, "a", 30), ""},
	"group: raised, and nothing ends":    {newScenario().at(10).plays("a", 10).awaits("b", 20).perGroup(2).at(30).logs(both(of(leaving, "a", 0), of(promoting, "b", 20))).cancels("a").logs(of(leaving, "b", 0)).cancels("b"), ""},
	"group: raised, and one waits then":  {newScenario().at(10).plays("a", 10).awaits("b", 20).perGroup(2).logs(of(leaving, "a", 0)).cancels("a"), "b waits in vain"},
	"group: lowered":                     {newScenario().at(2).perGroup(2).at(10).plays("a", 10).plays("b", 20).at(15).perGroup(1).at(30).logs(of(leaving, "a", 0)).cancels("a").logs(of(leaving, "b", 0)).cancels("b"), ""},
	"group: lowered, and one more":       {newScenario().at(2).perGroup(2).at(10).plays("a", 10).plays("b", 20).at(15).perGroup(1).plays("c", 30), "has 3 in play"},
	"group: finished by a stranger":      {strangerEnds().withLast(byStranger).sweeps().endsB(), ""},
	"group: finished by no stranger":     {strangerEnds().sweeps().endsB(), "is held up"},
	"group: finished, and never seen to": {strangerEnds().withLast(byStranger), "has 1 in play and 1 that wait when everything is quiet"},
	"group: the end lost by a power cut": {aThenB().logs(both(of(leaving, "a", 0), of(promoting, "b", 20))).settles(opDequeue, "a", 30).at(45).lost(3).
		at(70).logs(both(of(leaving, "a", 0), of(promoting, "b", 20))).settles(opDequeue, "a", 30).at(80).takesOne("b").at(90).logs(of(leaving, "b", 0)).settles(opDequeue, "b", 80), ""},
	"group: handled one after the other": {workers(40), ""},
	"group: handled at once":             {workers(47), "were handled at once"},
	"group: given back without an attempt, and due later": {aThenB().logs("ZREM {Queue:loop}:leased a; ZREM Queue:loop a; ZADD Queue:loop @@40 a; HSET {Queue:loop}:state a &0::").settles(opRelease, "a", 30).
		at(50).logs(both(of(leaving, "a", 0), of(promoting, "b", 20))).cancels("a").at(60).logs(of(leaving, "b", 0)).cancels("b"), ""},
	"group: had one after the other":    {atOnce().at(40).settles(opDequeue, "a", 30), ""},
	"group: had at once, and cancelled": {atOnce().at(40).cancels("a").at(100).settles(opDequeue, "a", 30).withLast(func(r *record) { r.Result = stale }), ""},
	"group: had at once, and a cancel of before that had no reply": {atOnce().recorded(record{Op: opCancel, Name: loopQueue, ID: "a", Call: 20, Return: 25, Result: unknown}).
		at(100).settles(opDequeue, "a", 30).withLast(func(r *record) { r.Result = stale }), ""},
	"group: had at once":                    {atOnce().at(100).settles(opDequeue, "a", 30).withLast(func(r *record) { r.Result = stale }), "were handled at once"},
	"group: two in play":                    {newScenario().at(10).plays("a", 10).plays("b", 20), "has 2 in play"},
	"group: one waits in vain":              {newScenario().at(10).awaits("b", 20), "b waits in vain"},
	"group: the end puts none into play":    {aThenB().logs(of(leaving, "a", 0)).settles(opDequeue, "a", 30), "b waits in vain"},
	"group: the end keeps the place":        {aThenB().logs(of(unqueued, "a", 0)).settles(opDequeue, "a", 30), "is held up"},
	"group: a sooner one waits":             {newScenario().at(10).plays("b", 200).awaits("a", 100), "a waits, due at"},
	"group: a later one is claimed":         {newScenario().at(10).plays("a", 10).logs(of(awaiting+payload, "b", 30)).awaits("c", 20).at(40).logs(both(of(leaving, "a", 0), of(promoting, "b", 30), of(claiming, "b", 440))).cancels("a").got("b", 40), "was claimed, due at"},
	"group: one that a worker has waits":    {aThenB().logs(both(of(displacing, "a", 430), of(promoting, "b", 20))), "is half there"},
	"group: one waits and is in the queue":  {newScenario().at(10).plays("a", 10).awaits("b", 20).logs("ZADD Queue:loop @@20 b"), "is half there"},
	"group: one waits without a payload":    {newScenario().at(10).plays("a", 10).logs(of(awaiting, "b", 20)).asked("b", 20), "is half there"},
	"group: one waits without a field":      {newScenario().at(10).plays("a", 10).awaits("b", 20).logs("HDEL {Queue:loop}:state b"), "is half there"},
	"group: one waits without a member":     {newScenario().at(10).plays("a", 10).logs("HSET {Queue:loop}:state b &::@@20; HSET {Queue:loop}:tasks b vb").asked("b", 20), "which does not have it"},
	"group: one is queued without a member": {newScenario().at(10).logs("ZADD Queue:loop @@10 a; HSET {Queue:loop}:state a &::; HSET {Queue:loop}:tasks a va").asked("a", 10), "which does not have it"},
	"group: one waits twice":                {newScenario().at(10).plays("a", 10).awaits("b", 20).logs("ZADD {Queue:loop}:groups 0 ~g:@@30:b"), "waits twice"},
	"group: one waits until another time":   {newScenario().at(10).plays("a", 10).awaits("b", 20).logs("ZREM {Queue:loop}:groups ~g:@@20:b; ZADD {Queue:loop}:groups 0 ~g:@@30:b"), "is half there"},
	"group: a member of none":               {newScenario().at(10).logs("ZADD {Queue:loop}:groups 0 !g:a"), "and not in the queue"},
	"group: another one was asked for":      {newScenario().at(10).plays("a", 10).withLast(func(r *record) { r.Group = "h" }), "asked for \"h\""},
	"group: lost on the way":                {newScenario().at(10).plays("a", 10).at(30).logs(strings.ReplaceAll(of(claiming, "a", 430), "&", "")), "and was in \"g\""},
	"group: another one was told":           {newScenario().at(10).plays("a", 10).at(30).takesOne("a").withLast(func(r *record) { r.Group = "h" }), "was told \"h\""},
	"group: one that waits is finished":     {aThenB().logs(of(unawaited, "b", 20)).settles(opDequeue, "b", 30), "no client requested it"},
}
