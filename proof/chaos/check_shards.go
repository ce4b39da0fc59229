package main

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// partsCheck checks the records of a queue that was moved to other numbers of shards. The log does not tell where each task
// is; but each has an ID of its own, so that the records say what became of it.
type partsCheck struct {
	*tasksCheck
	queue   string
	life    span // from its first operation to the last
	spoiled bool // the server lost data meanwhile
}

// checkShards checks the queues that were moved to other numbers of shards.
func (t *tasksCheck) checkShards() {
	queues := map[string]*partsCheck{}
	for _, r := range t.records {
		if !isParts(r.Name) {
			continue
		}
		q := queues[r.Name]
		if q == nil {
			q = &partsCheck{tasksCheck: t, queue: r.Name, life: span{math.MaxInt64, 0}}
			queues[r.Name] = q
		}
		if r.Op != opFinalPart {
			q.life = span{min(q.life.after, r.Call), max(q.life.before, r.Call, r.Return)}
		}
	}
	lost := t.partsLost()
	for _, q := range queues {
		q.spoiled = lost[q.queue] || t.inGap(q.life.after, q.life.before)
		if q.spoiled {
			t.counts["queues of parts that lost data, not checked"]++
		} else {
			t.counts["queues of parts"]++
		}
	}
	for key := range t.ops {
		if q := queues[key.queue]; q != nil && !q.spoiled {
			q.checkPart(key)
		}
	}
	t.checkReshards(queues)
}

// partsLost returns the queues of which something was cut off the log.
func (t *tasksCheck) partsLost() map[string]bool {
	lost := map[string]bool{}
	for i := range t.log {
		for _, command := range t.log[i].commands {
			if t.log[i].lost && len(command) > 1 {
				key, _ := queueName(command[1])
				name, _, _ := strings.Cut(key, ":")
				lost[name] = true
			}
		}
	}
	return lost
}

// checkReshards checks that in the end each move can be brought to its end.
func (t *tasksCheck) checkReshards(queues map[string]*partsCheck) {
	for _, r := range t.records {
		switch {
		case r.Op == opReshard && r.Result == done:
			t.counts["moves to other shards"]++
		case r.Op != opFinalPart || r.Result == done || queues[r.Name].spoiled:
		case t.deaths[r.Process] == 0 && !t.unreliable(queues[r.Name].life.after, r.Return):
			t.report("Reshard of %s, when everything is quiet: %s in %s after %v", r.Name, r.Result, r.Process, r.Return-r.Call)
		}
	}
}

// atOnce is how long a call may take that has certainly made one attempt: what the network held back comes after it.
const atOnce = 100 * time.Millisecond

// checkPart checks a task: it is not lost, not handed out again when it is over, and not to two at once.
func (q *partsCheck) checkPart(key taskKey) {
	var enqueued *record
	var deliveries []*record
	finish := false          // something may have finished it
	over := time.Duration(0) // when something certainly had
	settled := map[float64]time.Duration{}
	for _, r := range q.ops[key] { // sorted by their calls
		switch r.Op {
		case opEnqueue:
			enqueued = r
		case opPart:
			deliveries = append(deliveries, r)
		case opDequeuePart, opCancelPart:
			finish = finish || r.mayHaveRun()
			if r.Result == done && over == 0 {
				over = r.Return
			}
		}
		if r.Op == opDequeuePart || r.Op == opRetryPart {
			if _, twice := settled[r.Delivery]; !twice {
				settled[r.Delivery] = r.Call
			}
			q.checkPartStale(r, deliveries)
		}
	}
	if enqueued == nil {
		q.report("%v was delivered, and never enqueued", key)
		return
	}
	q.counts["tasks of parts"]++
	if enqueued.Result == done && !finish && enqueued.Outcome == int(sluice.Added) {
		q.report("%v, which %s enqueued at %v, is neither finished nor there when everything is quiet: %d deliveries", key, enqueued.Process, enqueued.Return, len(deliveries))
	}
	for _, d := range deliveries {
		if over != 0 && d.Call > over && enqueued.Result == done && enqueued.Return-enqueued.Call < atOnce {
			q.report("%v was finished before %v, and delivered again to %s at %v", key, over, d.Process, d.Call)
		}
	}
	q.checkPartOverlaps(key, deliveries, settled)
}

// checkPartStale checks that a receipt stays valid, wherever its task is moved, until its lease ends.
func (q *partsCheck) checkPartStale(r *record, deliveries []*record) {
	if r.Result != stale || r.Return-r.Call >= atOnce {
		return
	}
	last := deliveries[len(deliveries)-1]
	cancelled := slices.ContainsFunc(q.ops[taskKey{r.Name, r.ID}], func(o *record) bool {
		return o.Op == opCancelPart && o.Call <= r.Return && o.mayHaveRun()
	})
	if last.Delivery == r.Delivery && r.Return < last.Call+lease && !cancelled && !q.unreliable(last.Call, r.Return) {
		q.report("%s of %s on %s by %s was stale at %v, %v after it was claimed", r.Op, r.ID, r.Name, r.Process, r.Return, r.Return-last.Call)
	}
}

// checkPartOverlaps checks that no two callers hold a task at once.
func (q *partsCheck) checkPartOverlaps(key taskKey, deliveries []*record, settled map[float64]time.Duration) {
	until := func(d *record) time.Duration {
		end := d.Call + lease
		if at, ok := settled[d.Delivery]; ok {
			end = min(end, at)
		}
		return end
	}
	for i, a := range deliveries {
		q.counts["deliveries of parts"]++
		for _, b := range deliveries[:i] {
			if a.Return < until(b) && b.Return < until(a) && !q.unreliable(min(a.Call, b.Call), max(until(a), until(b))) {
				q.report("%v was held twice at once: by %s from %v, and by %s from %v", key, b.Process, b.Return, a.Process, a.Return)
			}
		}
	}
}
