package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// forever is the end of a pause without one.
const forever = time.Duration(math.MaxInt64)

// pause carries out a command on a queue's pause.
func (k keyspace) pause(queue, verb string, args []string) {
	switch verb {
	case "SET":
		until, limits := heldBack(args)
		k.paused[queue] = until
		if delete(k.limits, queue); limits != (sluice.Limits{}) {
			k.limits[queue] = &reign{queue, limits}
		}
	default: // DEL, UNLINK
		delete(k.paused, queue)
		delete(k.limits, queue)
	}
}

// heldBack returns until when a queue is paused, and its limits, by what its key is set to: see
// limits.lua.
func heldBack(args []string) (until time.Duration, l sluice.Limits) {
	var us, per, spent int64
	n, _ := fmt.Sscanf(args[0], "%d %d %d %d %d %d %d", &us, &l.Running, &l.Rate, &per, &l.Burst, &l.PerGroup, &spent)
	if n == 6 { // there is no other number before what is spent
		l.PerGroup = 0
	}
	if n < 6 {
		l = sluice.Limits{}
		if len(args) == 3 {
			return milliseconds(args[2]), sluice.Limits{}
		}
		return forever, sluice.Limits{}
	}
	if l.Per = time.Duration(per) * time.Microsecond; l.Rate == 0 {
		l.Per, l.Burst = 0, 0
	}
	if us == 9e15 {
		return forever, l
	}
	return time.Duration(us) * time.Microsecond, l
}

// isPause says whether a command begins a pause, or may, and of which queue.
func isPause(command []string) (queue string, ok bool) {
	queue, which := queueName(command[1])
	if which != "paused" || !strings.EqualFold(command[0], "SET") {
		return queue, false
	}
	until, _ := heldBack(command[2:])
	return queue, until > 0
}

// checkPauses checks that the log has each pause that was acknowledged, and that each page of a
// list began behind the one before.
func (t *tasksCheck) checkPauses() {
	for _, r := range t.records {
		made := func(p pauseBegun) bool { return p.queue == r.Name && p.meets(r.Call, r.Return) }
		switch {
		case r.Op == opPause && r.Result == done && !slices.ContainsFunc(t.pauses, made) && !t.inGap(r.Call, r.Return):
			t.report("Pause of %s by %s returned nil at %v, and the log does not have it", r.Name, r.Process, r.Return)
		case r.Op == opList && r.Result == outOfOrder:
			t.report("List of %s by %s at %v: a page has a task of another state, or one that does not come behind the last", r.Name, r.Process, r.Call)
		}
	}
}

// checkPaused checks that a task is not handed out while its queue is paused, by the server's
// clock.
func (t *tasksCheck) checkPaused(m *move) {
	if _, latest := t.clock.at(m.span); m.paused > latest+clockError {
		t.report("%v was handed out at %v, while its queue was paused until %v", m.taskKey, m.span, m.paused)
	}
}
