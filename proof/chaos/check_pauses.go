package main

import (
	"math"
	"slices"
	"strings"
	"time"
)

// forever is the end of a pause without one.
const forever = time.Duration(math.MaxInt64)

// pause carries out a command on a queue's pause.
func (k keyspace) pause(queue, verb string, args []string) {
	switch verb {
	case "SET":
		k.paused[queue] = forever
		if len(args) == 3 {
			k.paused[queue] = milliseconds(args[2])
		}
	case "HSET":
		k.limit(queue, args)
	default: // DEL, UNLINK
		delete(k.paused, queue)
		delete(k.limits, queue)
	}
}

// isPause says whether a command begins a pause, and of which queue.
func isPause(command []string) (queue string, ok bool) {
	queue, which := queueName(command[1])
	isWith := len(command) > 3 && strings.EqualFold(command[0], "HSET") && command[2] == "until" // of a queue with limits
	return queue, which == "paused" && (isWith || strings.EqualFold(command[0], "SET"))
}

// checkPauses checks that the log has each pause that was acknowledged, and that each page of a list began behind
// the one before.
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

// checkPaused checks that a task is not handed out while its queue is paused, by the server's clock.
func (t *tasksCheck) checkPaused(m *move) {
	if _, latest := t.clock.at(m.span); m.paused > latest+clockError {
		t.report("%v was handed out at %v, while its queue was paused until %v", m.taskKey, m.span, m.paused)
	}
}
